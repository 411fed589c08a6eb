"""Determine whether the supervisor of a run is alive, as far as this machine can know."""

from __future__ import annotations

from pathlib import Path

from orch_node import lease, machine
from orch_node.agent import processes
from orch_node.protocol import files, outcome
from orch_node.protocol.outcome import SupervisorProcess
from orch_node.protocol.values import ProtocolError

RUNNING, KILLED, UNKNOWN = "running", "killed", "unknown"


def read_supervisor(run_dir: Path) -> SupervisorProcess | None:
    """Return the supervisor that a run has recorded, or None if there is no readable record."""
    try:
        return outcome.parse_supervisor((run_dir / files.SUPERVISOR).read_bytes())
    except (OSError, ProtocolError):
        return None


def state_of(run_dir: Path, supervisor: SupervisorProcess) -> str:
    """Return whether a run without an outcome is RUNNING, KILLED, or UNKNOWN here.

    A supervisor on another host, or in another container, is running if it has renewed its lease
    recently, and gone if it has not for a long time. If the age of the lease cannot be measured,
    as through a read-only mount, its state is unknown.
    """
    if supervisor.identity is None:  # it ended before it recorded its identity
        return RUNNING if supervises(supervisor.pid, run_dir) else KILLED
    condition = machine.condition_of(supervisor.identity)
    if condition != machine.UNKNOWN:
        return RUNNING if condition == machine.ALIVE else KILLED
    path = run_dir / files.LEASE
    renewed = path.exists()
    age = lease.seconds_since_renewal(path if renewed else run_dir / files.SUPERVISOR)
    if age is None:
        return UNKNOWN
    if renewed and age <= lease.RECENT_SECONDS:
        return RUNNING
    return UNKNOWN if age <= lease.EXPIRE_SECONDS else KILLED


def may_run_elsewhere(run_dir: Path) -> SupervisorProcess | None:
    """Return the supervisor of a run without an outcome if only another host can see its process.

    Returns None once the lease of the supervisor has expired.
    """
    supervisor = read_supervisor(run_dir)
    if supervisor is None or supervisor.identity is None or (run_dir / files.OUTCOME).exists():
        return None
    if machine.condition_of(supervisor.identity) != machine.UNKNOWN:
        return None
    return None if state_of(run_dir, supervisor) == KILLED else supervisor


def supervises(pid: int, run_dir: Path) -> bool:
    """Return whether the process is the supervisor of the run, by its arguments."""
    argv = processes.read_argv(pid)
    folder = processes.run_argument(argv, pid)
    if processes.role_of(argv, pid) != "supervisor" or not folder:
        return False
    try:
        return Path(folder.decode(errors="surrogateescape")).samefile(run_dir)
    except OSError:
        return False
