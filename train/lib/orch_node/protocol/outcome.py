"""outcome.json: how a run ended, and the result of ending its processes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from orch_node.machine import ProcessIdentity
from orch_node.protocol import files, values

LAST_PID = (1 << 31) - 1  # the largest argument of kill(2)
DONE, FAILED, REFUSED, STOPPED = "done", "failed", "refused", "stopped"
PREEMPTED = "preempted"  # the run continues from its checkpoint when it is started again
ENDING_SIGNALS = ("SIGTERM", "SIGKILL")  # by which batch systems end processes
EX_TEMPFAIL = 75  # sysexits(3): the exit code of preempted ranks and runs


@dataclass(frozen=True)
class Failure:
    """A rank that failed. Its code and signal are None until its end is reported."""

    rank: int
    node: str | None = None
    code: int | None = None
    signal: str | None = None
    oom: str | None = None  # what shows that memory ran out
    text: str = ""
    time: float | None = None


@dataclass(frozen=True)
class ProcessRecord:
    """A process of a run at one moment, or (pid 0) a container."""

    pid: int
    role: str
    name: str
    state: str  # a letter of proc(5)
    rank: int | None = None
    parent: int = 0
    start: int = 0  # clock ticks since boot

    @property
    def key(self) -> tuple[int, int]:
        """Return the pid and the start, which identify the process."""
        return self.pid, self.start


@dataclass(frozen=True)
class NodeEnd:
    """The result of ending the run's processes on a node."""

    ended: int = 0  # number of processes
    left: tuple[ProcessRecord, ...] = ()  # they could not be ended
    segments: tuple[str, ...] = ()  # of /dev/shm, removed
    segments_left: tuple[str, ...] = ()  # of /dev/shm, not removed
    seconds: float = 0.0
    lost: str | None = None  # why the node does not respond


@dataclass(frozen=True)
class Outcome:
    """The result of a run, or of one of its attempts, which has no times, attempts and nodes.

    Times are seconds since the epoch.
    """

    state: str  # done, failed, stopped, refused or preempted
    first_failure: Failure | None = None
    problem: str | None = None  # a cause other than a single rank
    started: float = 0.0
    ended: float = 0.0
    attempts: int = 1
    nodes: dict[str, NodeEnd] = field(default_factory=dict)
    schema: int = 1


@dataclass(frozen=True)
class SupervisorProcess:
    """supervisor.json: the process that watches the run.

    Attributes:
        pid: process number on node0.
        started: seconds since the epoch.
        identity: the process and its machine; None if it was ended before it began.
    """

    pid: int
    started: float = 0.0
    identity: ProcessIdentity | None = None


def parse_supervisor(text: str | bytes) -> SupervisorProcess:
    """Parse supervisor.json.

    Raises:
        ProtocolError: if it is damaged, or its pid would not be one process for kill(2).
    """
    process = values.parse(SupervisorProcess, text, files.SUPERVISOR, ignore_unknown=True)
    if not is_process(process.pid):
        raise values.ProtocolError(f"{files.SUPERVISOR}: pid {process.pid} is not a process.")
    return process


def is_process(pid: int) -> bool:
    """Return whether a signal to this number reaches one process: not init and not a group."""
    return 1 < pid <= LAST_PID


def parse(text: str | bytes) -> Outcome:
    """Parse outcome.json.

    Raises:
        ProtocolError: if it is damaged.
    """
    return values.parse(Outcome, text, files.OUTCOME, ignore_unknown=True)


def render(content: Outcome | SupervisorProcess) -> str:
    """Return the content of outcome.json or supervisor.json."""
    return json.dumps(values.record(content), indent=1) + "\n"
