"""outcome.json: how a run ended, and what its end left on each node."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from orch_node.machine import ProcessIdentity
from orch_node.protocol import files, values

SCHEMA = 1
LAST_PID = (1 << 31) - 1  # that kill(2) takes
DONE, FAILED, REFUSED, STOPPED = "done", "failed", "refused", "stopped"
PREEMPTED = "preempted"  # it has made room, and goes on from its checkpoint when started again
EX_TEMPFAIL = 75  # sysexits(3): of a rank that has made room, and of a run of such ranks


@dataclass(frozen=True)
class Failure:
    """A rank that failed. `code` and `signal` are None while its end has not been reported.
    `oom`: what shows that memory ran out."""

    rank: int
    node: str | None = None
    code: int | None = None
    signal: str | None = None
    oom: str | None = None
    text: str = ""
    time: float | None = None


@dataclass(frozen=True)
class ProcessRecord:
    """A process of a run, or (pid 0) a container. `start`: clock ticks since boot."""

    pid: int
    role: str
    name: str
    state: str
    rank: int | None = None
    parent: int = 0
    start: int = 0


@dataclass(frozen=True)
class NodeEnd:
    """What ending the run came to on one node: how many processes ended, those that did not, the
    segments of /dev/shm that were removed, and those that are left. `lost`: why the node says
    nothing."""

    ended: int = 0
    left: tuple[ProcessRecord, ...] = ()
    segments: tuple[str, ...] = ()
    segments_left: tuple[str, ...] = ()
    seconds: float = 0.0
    lost: str | None = None


@dataclass(frozen=True)
class Outcome:
    """`problem`: what no single rank is to blame for. Times are since the epoch."""

    state: str
    first_failure: Failure | None = None
    problem: str | None = None
    launcher_code: int | None = None
    started: float = 0.0
    ended: float = 0.0
    attempts: int = 1
    nodes: dict[str, NodeEnd] = field(default_factory=dict)
    schema: int = SCHEMA


@dataclass(frozen=True)
class SupervisorProcess:
    """supervisor.json: the process that watches the run.

    Attributes:
        pid: its number on node0.
        started: seconds since the epoch.
        identity: which process of which machine it is; None if it was ended before it began.
    """

    pid: int
    started: float = 0.0
    identity: ProcessIdentity | None = None


def parse_supervisor(text: str | bytes) -> SupervisorProcess:
    """Raises ProtocolError, also for what no process of a user has: kill(-1) reaches all."""
    found = values.parse_known(SupervisorProcess, text, files.SUPERVISOR)
    if not is_process(found.pid):
        raise values.ProtocolError(f"{files.SUPERVISOR}: pid is {found.pid}, no process.")
    return found


def is_process(pid: int) -> bool:
    """Whether a signal to it reaches one process: not init, no group."""
    return 1 < pid <= LAST_PID


def render_supervisor(process: SupervisorProcess) -> str:
    return json.dumps(values.record(process), indent=1) + "\n"


def parse(text: str | bytes) -> Outcome:
    """Raises ProtocolError."""
    return values.parse_known(Outcome, text, files.OUTCOME)


def record(outcome: Outcome) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "schema": outcome.schema,
        "state": outcome.state,
        "first_failure": values.record(outcome.first_failure),
        "problem": outcome.problem,
        "launcher_code": outcome.launcher_code,
        "attempts": outcome.attempts,
        "nodes": nodes_record(outcome.nodes),
        "started": outcome.started,
        "ended": outcome.ended,
    }


def nodes_record(nodes: dict[str, NodeEnd]) -> dict[str, Any]:
    """A lost node has nothing else to say, and the others no word `lost`."""
    found = {}
    for name, end in nodes.items():
        whole = values.record(end)
        lost = whole.pop("lost")
        found[name] = whole if lost is None else {"lost": lost}
    return found


def render(outcome: Outcome) -> str:
    return json.dumps(record(outcome), indent=1) + "\n"
