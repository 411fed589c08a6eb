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

# Of an array with its task, of a run in an allocation with its step.
JOB = re.compile(r"[0-9]{1,18}(?:[_.][0-9]{1,9})?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLocation:
    """`job`: Slurm's number of it, empty until it is submitted; `name`: the job's, which no other
    run has. `login`: the host with Slurm's programs, empty for this one. `cluster`: the one that
    has the job, of several at a site; empty for the host's own."""

    name: str
    job: str = ""
    login: str = ""
    cluster: str = ""


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
    fields = (("job", found.job, JOB), ("host", found.login, HOST), ("cluster", found.cluster, HOST))
    for kind, text, pattern in fields:
        if text and not pattern.fullmatch(text):
            raise damaged(record, f"{text!r:.40} is no {kind}.")
    return found


def damaged(record: RunRecord, why: str) -> ExecuteError:
    return ExecuteError(
        f"The record of {record.run_id} is damaged: {why}",
        hint="`squeue --me` shows whether its job lives; its files stay where they are.",
    )


def submitted(record: RunRecord, job: str, cluster: str = "") -> RunRecord:
    location = replace(location_of(record), job=job, cluster=cluster)
    return replace(record, location=render(location))


def at_home(record: RunRecord) -> RunRecord:
    """The record as it is read where Slurm's programs are."""
    return replace(record, location=render(replace(location_of(record), login="")))
