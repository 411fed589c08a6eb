"""The location of a run's job, as its record stores it, and the host with the batch system's programs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from orch_node.protocol import values
from orch_node.protocol.record import RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.load.clusters import local_facts
from orchestrator.model.cluster import Facts
from orchestrator.model.printable import LOGIN_SCRIPT_HINT
from orchestrator.targets.batch.scheduler import Scheduler
from orchestrator.targets.batch.settings import HOST, BatchSettings
from orchestrator.targets.batch.system import ONE_RANK, BatchSystem
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.interpreter import FACTS_SECONDS, query_interpreter

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


def for_login_host(record: RunRecord) -> RunRecord:
    """Return the record as it is read on the host with the batch system's programs."""
    return replace(record, location=values.record(replace(location_of(record), login="")))


# Many sites add the batch system's programs to PATH only in login shells.
SHELL = ("bash", "-lc", 'exec "$@"', "bash")


def python_hint(system: BatchSystem) -> str:
    """Return how to name the interpreter of the nodes."""
    return (
        f"Use {system.flag} root=FOLDER with a folder that `orch provision --on {system.name}` has filled, or "
        "--python with an interpreter that has torch. Both must be on a shared file system."
    )


def host_at(login: str) -> Local | Ssh:
    """Return the connection to a host.

    Args:
        login: the host as ~/.ssh/config knows it; '' for this machine.
    """
    return Ssh(login, None) if login else Local()


def scheduler_at(system: BatchSystem, host: Local | Ssh, cluster: str = "") -> Scheduler:
    """Return the programs of a batch system on a host; on a login node they run in a login shell."""
    return Scheduler(system, host, SHELL if isinstance(host, Ssh) else (), cluster)


def query_host(system: BatchSystem, login: str, python: str, *, is_user_python: bool) -> tuple[Facts, str]:
    """Return the facts of the host with the batch system's programs and of its stack, and the user's home folder there.

    Args:
        system: the batch system.
        login: the host; '' for this machine.
        python: the interpreter.
        is_user_python: whether it is neither that of a stack nor the one that runs orch.

    Raises:
        RequestError: if the interpreter does not exist.
        ExecuteError: if the host does not respond as expected.
    """
    if not login:
        if not Path(python).exists():
            raise RequestError(f"{python} does not exist.", hint=python_hint(system))
        query = partial(query_interpreter, Local(), "this machine", hint=python_hint(system))
        return query(python) if is_user_python else local_facts(python), str(Path.home())
    host = Ssh(login, None)
    try:
        return query_login_node(system, host, python)
    finally:
        host.close()


def query_default_ranks(settings: BatchSettings) -> tuple[int, str]:
    """Return the ranks on each node for --ppn auto, with the reason; one rank if the system does not respond."""
    host = host_at(settings.login or "")
    try:
        programs = scheduler_at(settings.system, host, settings.options.get("clusters", ""))
        return settings.system.default_ranks(programs, settings.options, settings.held)
    except ExecuteError:
        return ONE_RANK
    finally:
        host.close()


def query_login_node(system: BatchSystem, host: Ssh, python: str) -> tuple[Facts, str]:
    """Return the facts of a login node, and the user's home folder there.

    Raises:
        RequestError: if the interpreter does not exist there.
        ExecuteError: if the interpreter fails, or a command prints something else than it should.
    """
    home = host.capture(("sh", "-c", 'printf %s "$HOME"'), seconds=FACTS_SECONDS)
    if not home.out.startswith("/"):
        raise ExecuteError(
            f"{host.node}: the output of a command there begins with {home.out.strip()[:60]!r}, "
            "which that command does not print.",
            hint=LOGIN_SCRIPT_HINT,
        )
    return query_interpreter(host, host.node, python, python_hint(system)), home.out
