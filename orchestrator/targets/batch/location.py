"""The location of a run that is a job of a batch system, as the record of the run stores it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from orch_node.protocol import values
from orch_node.protocol.record import RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError
from orchestrator.targets.batch.settings import HOST

JOB_NAME_PREFIX = "orch-"  # before the run id
# A job id of any batch system, such as Slurm's 12, 12_TASK and 12.STEP or PBS's 12[TASK].server.
JOB = re.compile(r"[0-9]{1,18}[0-9A-Za-z._\[\]-]{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLocation:
    """The job of a run, and the cluster that has it.

    Attributes:
        name: the name of the job, which is unique among the runs.
        job: the id of the job; '' until it is submitted.
        login: the host with the batch system's programs; '' for this machine.
        cluster: the job's cluster, at a site with several; '' for the host's default.
    """

    name: str
    job: str = ""
    login: str = ""
    cluster: str = ""


def location_of(record: RunRecord) -> JobLocation:
    """Return the location in a run record.

    Raises:
        ExecuteError: if the location is damaged.
    """
    try:
        location = values.read(JobLocation, record.location, "location")
    except ProtocolError as error:
        raise damaged_record_error(record, str(error)) from None
    fields = (("job", location.job, JOB), ("host", location.login, HOST), ("cluster", location.cluster, HOST))
    for kind, text, pattern in fields:
        if text and not pattern.fullmatch(text):
            raise damaged_record_error(record, f"{text!r:.40} is not a valid {kind}.")
    return location


def store_of(run_dir: str) -> str:
    """Return the folder of what controllers have sent for the runs next to this one, by the hash of the content."""
    return f"{PurePosixPath(run_dir).parent}/.orch/store"


def damaged_record_error(record: RunRecord, problem: str) -> ExecuteError:
    """Return the error for a record whose location is damaged."""
    return ExecuteError(
        f"The record of {record.run_id} is damaged: {problem}",
        hint="Its job may still run. Its files were not changed.",
    )


def with_job(record: RunRecord, job: str, cluster: str = "") -> RunRecord:
    """Return the record with the id of the submitted job."""
    location = replace(location_of(record), job=job, cluster=cluster)
    return replace(record, location=values.record(location))
