"""Where a run lives that is a job of Slurm, as its record says it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.record import RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError
from orchestrator.targets.slurm.settings import HOST

JOB = re.compile(r"[0-9]{1,18}(?:_[0-9]{1,9})?", re.ASCII)  # of an array with its task


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLocation:
    """`job`: Slurm's number of it, empty until it is submitted; `name`: the job's, which no other
    run has. `login`: the host with Slurm's programs, empty for this one."""

    name: str
    job: str = ""
    login: str = ""


def render(location: JobLocation) -> dict[str, Any]:
    """As a run's record has it."""
    found: dict[str, Any] = values.record(location)
    return found


def location_of(record: RunRecord) -> JobLocation:
    """Raises ExecuteError for a record that does not tell."""
    try:
        found = values.read(JobLocation, record.location, "location")
    except ProtocolError as error:
        raise damaged(record, str(error)) from None
    for what, text, pattern in (("job", found.job, JOB), ("host", found.login, HOST)):
        if text and not pattern.fullmatch(text):
            raise damaged(record, f"{text!r:.40} is no {what}.")
    return found


def damaged(record: RunRecord, why: str) -> ExecuteError:
    return ExecuteError(
        f"The record of {record.run_id} is damaged: {why}",
        hint="`squeue --me` shows whether its job lives; its files stay where they are.",
    )


def submitted(record: RunRecord, job: str) -> RunRecord:
    return replace(record, location=render(replace(location_of(record), job=job)))


def at_home(record: RunRecord) -> RunRecord:
    """The record as it is read where Slurm's programs are."""
    return replace(record, location=render(replace(location_of(record), login="")))
