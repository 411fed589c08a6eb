"""Read and write the files of runs that wait on this machine for free nodes.

The file `queued.json` in a run's folder names its queue, a folder next to it. In that folder, queue.json has the order
of the waiting runs and what the first one waits for, and the process that starts the runs holds a lock on queue.lock.
It stops when there is a file `stop`, which also a program on another host that has the same folder can create.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from orch_node import atomic_write
from orch_node.agent.core_claims import locked
from orch_node.protocol import values
from orch_node.protocol.files import is_run_id

from orchestrator.errors import ExecuteError
from orchestrator.model.printable import counted
from orchestrator.runs.state_files import read_json, write_json

QUEUED = "queued"  # the state
MARK, QUEUE, LOCK, LOG, STOP = "queued.json", "queue.json", "queue.lock", "queue.log", "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """The state of a queue, as its process has written it.

    Attributes:
        pid: the process.
        waiting: the ids of the waiting runs, the next one first.
        reason: what the next one waits for.
        limit: how many runs may be active at once; None for no limit.
    """

    pid: int
    waiting: tuple[str, ...]
    reason: str
    limit: int | None = None


def mark(folder: Path, queue: str) -> None:
    """Record that the run in a folder waits in a queue."""
    write_json(folder / MARK, {"queue": queue})


def unmark(folder: Path) -> None:
    """Record that the run in a folder does not wait any longer."""
    (folder / MARK).unlink(missing_ok=True)


def queue_of(folder: Path) -> Path | None:
    """Return the folder of the queue in which a run waits, or None if it does not wait."""
    name = (read_json(folder / MARK) or {}).get("queue")
    return folder.parent / name if isinstance(name, str) and is_run_id(name) else None


def is_active(queue: Path) -> bool:
    """Return whether the process of a queue lives."""
    try:
        with open(queue / LOCK, "rb", opener=atomic_write.plain) as lock:
            return locked(lock.fileno())
    except OSError:
        return False


def lock(queue: Path, option: str = "") -> BinaryIO:
    """Return the locked file of a queue, which its process inherits; `option` names its folder in hints.

    Raises:
        ExecuteError: if the queue has a process.
    """
    file = open(queue / LOCK, "w+b", opener=lambda path, flags: os.open(path, flags, 0o600))  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ExecuteError.about("running-queue", array=queue.name, option=option) from None
    return file


def write_state(queue: Path, waiting: Sequence[str], reason: str, limit: int | None) -> None:
    """Write the order of the waiting runs, what the first one waits for, and the limit of active runs."""
    write_json(queue / QUEUE, {"pid": os.getpid(), "waiting": list(waiting), "reason": reason, "limit": limit})


def read_state(queue: Path) -> QueueState | None:
    """Return what the process of a queue has written last, or None if that cannot be read."""
    state = values.load(lambda content: values.parse(QueueState, content, QUEUE), queue / QUEUE)
    return state if state and state.pid > 1 else None


def describe_wait(folder: Path) -> str:
    """Return what a run waits for."""
    queue = queue_of(folder)
    state = read_state(queue) if queue else None
    if state is None or folder.name not in state.waiting:
        return "starting"
    position = state.waiting.index(folder.name)
    return f"waits for {counted(position, 'run')} before it" if position else state.reason
