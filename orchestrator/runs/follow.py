"""The events of a run as they arrive in its local folder, which its source keeps up to date."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from orch_node import disk, lease
from orch_node.machine import send_signal, start_time
from orch_node.protocol import files
from orch_node.protocol.events import Event
from orch_node.tail import last_text

from orchestrator.errors import ExecuteError
from orchestrator.runs import queued, store
from orchestrator.runs.events import events_in, whole_lines
from orchestrator.runs.state_files import supervises, supervisor_of

POLL_SECONDS = 0.1
ELSEWHERE_SECONDS = 2.0  # interval between checks of the lease of a supervisor on another host
START_SECONDS = 15.0
MAX_LOG_CHARACTERS = 2000  # maximum number of characters of the supervisor's log in a message


class Source(Protocol):
    """The operations that following a run needs on the machine that runs it."""

    def refresh(self) -> None:
        """Bring the local folder of the run up to date."""

    def lost(self, pid: int) -> bool:
        """Return whether the supervisor has ended or was killed."""

    def terminate(self, pid: int) -> None:
        """Ask the supervisor to end the run with SIGINT, since SIGTERM means preemption."""

    def supervisor_output(self) -> str:
        """Return the last output of a supervisor that did not start, or why it could write none."""


class LocalRun:
    """A run of this machine, whose folder is always up to date."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.elsewhere = False
        self.looked = 0.0

    def refresh(self) -> None:
        pass

    def supervisor_output(self) -> str:
        """Return the end of the supervisor's log, or why it cannot be written."""
        if log_text := last_text(self.folder / files.SUPERVISOR_LOG, MAX_LOG_CHARACTERS).strip():
            return log_text
        write_error = disk.write_error(self.folder)
        return disk.describe_error(self.folder, write_error) if write_error else ""

    def lost(self, pid: int) -> bool:
        """Return whether the supervisor has ended; check a supervisor on another host only every few seconds."""
        supervisor = supervisor_of(self.folder)
        if supervisor is None:
            return not supervises(pid, self.folder)
        if self.elsewhere and time.monotonic() - self.looked < ELSEWHERE_SECONDS:
            return False
        self.elsewhere = lease.may_run_elsewhere(self.folder) is not None
        self.looked = time.monotonic()
        return lease.state_of(self.folder, supervisor) == lease.KILLED

    def terminate(self, pid: int) -> None:
        """Ask the supervisor to end the run; a supervisor on another host checks for the file STOP.

        Its start time is read before the process is verified, because the pid may be reused in between.
        """
        if lease.may_run_elsewhere(self.folder) is not None:
            (self.folder / files.STOP).touch(0o600)
            return
        start = start_time(pid)
        if supervises(pid, self.folder):
            send_signal(pid, start, signal.SIGINT)


def follow(folder: Path, source: Source, *, ranks: int, offset: int = 0) -> Iterator[list[Event]]:
    """Yield the new events of a run again and again, until its outcome exists or its supervisor has ended.

    Args:
        folder: the local folder of the run.
        source: keeps the folder up to date.
        ranks: the number of ranks of the run, or 0 if it is unknown.
        offset: the bytes of the events to skip.
    """
    pid = await_start(folder, source)
    while True:
        # This order ensures that everything written before the end is read before the loop stops.
        supervisor_ended = pid is None or source.lost(pid)
        source.refresh()
        ended = supervisor_ended or (folder / files.OUTCOME).exists()
        events: list[Event] = []
        while new_lines := whole_lines(folder / files.EVENTS, offset):
            offset += sum(len(line) + 1 for line in new_lines)
            events += events_in(new_lines, ranks=ranks)
        yield events
        if ended:
            return
        time.sleep(POLL_SECONDS)


def await_start(folder: Path, source: Source) -> int | None:
    """Wait until the supervisor reports, and return its pid.

    Returns:
        The pid, or None if the run has ended without the supervisor reporting, or its queue has ended before its start.

    Raises:
        ExecuteError: if the supervisor does not report within START_SECONDS.
    """
    deadline = time.monotonic() + START_SECONDS
    queue = queued.queue_of(folder)
    was_left_waiting = queue is not None and not queued.is_active(queue)
    while (supervisor := supervisor_of(folder)) is None:
        if was_left_waiting or (folder / files.OUTCOME).exists():
            return None
        if time.monotonic() > deadline:
            message, arguments = source.supervisor_output() or "it wrote nothing", store.cli_arguments(folder)
            raise ExecuteError.about("supervisor-start", folder=folder, message=message, arguments=arguments)
        time.sleep(0.01)
        source.refresh()
    return supervisor.pid
