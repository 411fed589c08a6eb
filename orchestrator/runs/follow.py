"""The events of a run as they come, from its folder here, which its source keeps up to date."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from orch_node import disk, supervisor_state
from orch_node.protocol import files
from orch_node.protocol.events import Event
from orch_node.tail import last_text

from orchestrator.errors import ExecuteError
from orchestrator.runs.events import events_in, whole_lines
from orchestrator.runs.state_files import supervises, supervisor_of

POLL_SECONDS = 0.1
ELSEWHERE_SECONDS = 2.0  # between looks at the lease of a supervisor that is not visible here
START_SECONDS = 15.0
LAST_WORDS = 2000  # letters


class Source(Protocol):
    """Where a run lives: what follows it needs of that place."""

    def refresh(self) -> None:
        """Bring the run's folder here up to date."""

    def lost(self, pid: int) -> bool:
        """Whether the supervisor is gone."""

    def terminate(self, pid: int) -> None:
        """Ask the supervisor to end the run: SIGINT, for at SIGTERM it makes room."""

    def said(self) -> str:
        """The last words of a supervisor that did not start; or what kept it from writing any."""


class LocalRun:
    """A run of this machine: its folder is always up to date."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.elsewhere = False
        self.looked = 0.0

    def refresh(self) -> None:
        pass

    def said(self) -> str:
        if words := last_text(self.folder / files.SUPERVISOR_LOG, LAST_WORDS).strip():
            return words
        refused = disk.write_error(self.folder)
        return disk.describe_error(self.folder, refused) if refused else ""

    def lost(self, pid: int) -> bool:
        """Return whether the supervisor is gone; check one on another host every few seconds."""
        supervisor = supervisor_of(self.folder)
        if supervisor is None:
            return not supervises(pid, self.folder)
        if self.elsewhere and time.monotonic() - self.looked < ELSEWHERE_SECONDS:
            return False
        self.elsewhere = supervisor_state.may_run_elsewhere(self.folder) is not None
        self.looked = time.monotonic()
        return supervisor_state.state_of(self.folder, supervisor) == supervisor_state.KILLED

    def terminate(self, pid: int) -> None:
        """Ask the supervisor to end the run; one on another host looks for the file STOP.

        The descriptor is opened before the arguments are read: the number may be used again.
        """
        if supervisor_state.may_run_elsewhere(self.folder) is not None:
            (self.folder / files.STOP).touch(0o600)
            return
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if supervises(pid, self.folder):
                signal.pidfd_send_signal(process, signal.SIGINT)
        finally:
            os.close(process)


def follow(folder: Path, source: Source, *, ranks: int) -> Iterator[Event]:
    """Events of a run of so many ranks as they come, until its outcome is there or its supervisor
    is gone."""
    offset = 0
    pid = await_start(folder, source)
    while True:
        # In this order: what is written before the end is read before it is believed.
        gone = pid is None or source.lost(pid)
        source.refresh()
        ended = gone or (folder / files.OUTCOME).exists()
        while whole := whole_lines(folder / files.EVENTS, offset):
            offset += sum(len(line) + 1 for line in whole)
            yield from events_in(whole, ranks=ranks)
        if ended:
            return
        time.sleep(POLL_SECONDS)


def await_start(folder: Path, source: Source) -> int | None:
    """Wait for the supervisor to report; -> its pid, None if the run has ended without telling it.
    Raises ExecuteError if it does not."""
    deadline = time.monotonic() + START_SECONDS
    while (supervisor := supervisor_of(folder)) is None:
        if (folder / files.OUTCOME).exists():
            return None
        if time.monotonic() > deadline:
            words = source.said() or "it wrote nothing"
            raise ExecuteError(
                f"The supervisor of {folder.name} did not start: {words}",
                hint=f"`orch stop {folder.name}` ends what is left of it; then start it again.",
            )
        time.sleep(0.01)
        source.refresh()
    return supervisor.pid


def interrupt(folder: Path, source: Source) -> None:
    """Ask the supervisor to end the run, and wait until its outcome is there."""
    pid = await_start(folder, source)
    if pid is not None:
        source.terminate(pid)
    for _ in follow(folder, source, ranks=0):
        pass
