"""The files of a run that is a job: on a file system that this machine sees, or copied from a login node."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from orch_node.protocol import batch, files
from orch_node.protocol.record import RunRecord, render
from orch_node.tail import last_text

from orchestrator.files import write_whole
from orchestrator.runs.follow import MAX_LOG_CHARACTERS, LocalRun
from orchestrator.runs.state_files import outcome_in, read_json, write_json
from orchestrator.targets.connections.connection import Result, Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.connections.mirror import Mirror
from orchestrator.targets.interface import Notify

REFRESH_SECONDS = 0.5  # Copying less often saves a login node, which many users share, from load.
STATE_FILES = (files.SUPERVISOR, files.OUTCOME, files.LAYOUT)


class LocalFolder(LocalRun):
    """The folder of a run on a file system that this machine sees."""

    def write(self, name: str, text: str) -> None:
        """Write a file of the run that every observer of the run sees."""
        Local().put(str(self.folder / name), text)

    def has_file(self, name: str) -> bool:
        """Return whether the job has written this file."""
        return (self.folder / name).exists()

    def end_of(self, pattern: re.Pattern[str], size: int = MAX_LOG_CHARACTERS) -> str:
        """Return the end of the newest file of the run whose name matches, or '' if there is none."""
        name = files.newest((path.name for path in self.folder.iterdir()), pattern)
        return last_text(self.folder / name, size).strip() if name else ""

    def update_logs(self, ranks: Iterable[int]) -> None:
        """Do nothing: the logs are in the folder."""

    def finish(self, output_dir: str | None) -> None:
        """Do nothing: the results are in the folder."""

    def attempt(self, action: Callable[[], Result], fallback: Result) -> Result:
        """Call `action`; over a login node, return `fallback` if that node cannot be reached."""
        return action()


class RemoteFolder(Mirror):
    """The local copy of a run on a file system that a login node sees."""

    def __init__(self, host: Ssh, record: RunRecord, folder: Path, notify: Notify) -> None:
        super().__init__(host, record.run_dir, folder, ranks=len(record.layout), notify=notify)
        self.state_files = (*STATE_FILES, batch.job_file(record.target))
        self.last_refresh = -REFRESH_SECONDS

    def copy_state(self) -> None:
        """Copy the events and the state files, at most twice per second.

        A requeued job deletes its outcome, so files that disappear are deleted from the copy, too.
        """
        if time.monotonic() - self.last_refresh < REFRESH_SECONDS:
            return
        # The outcome is read before the events, so that a copy with an outcome has all events.
        contents = {name: self.content(name) for name in self.state_files}
        self.append(files.EVENTS)
        if outcome_in(self.folder) is None:
            self.mark_unfetched()
        for name, content in contents.items():
            with self.local_files.writing(name):
                if content is None:
                    (self.folder / name).unlink(missing_ok=True)
                else:
                    write_whole(self.folder / name, content)
        self.last_refresh = time.monotonic()

    def write(self, name: str, text: str) -> None:
        self.remote.put(f"{self.run_dir}/{name}", text)
        write_whole(self.folder / name, text)

    def has_file(self, name: str) -> bool:
        return self.attempt(lambda: self.content(name) is not None, True)

    def end_of(self, pattern: re.Pattern[str], size: int = MAX_LOG_CHARACTERS) -> str:
        def read() -> bytes | None:
            sizes = self.remote.sizes(self.run_dir)
            name = files.newest(sizes, pattern)
            return self.remote.read(f"{self.run_dir}/{name}", max(0, sizes[name] - size), size) if name else None

        return (self.attempt(read, None) or b"").decode(errors="replace").strip()

    def update_logs(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            for name in (files.RANK_LOG.format(rank), files.RANK_TIMES.format(rank)):
                self.attempt(lambda name=name: self.append(name), None)  # type: ignore[misc]

    def finish(self, output_dir: str | None) -> None:
        self.last_refresh = -REFRESH_SECONDS
        super().finish(output_dir)
        self.copy_logs()


RunFolder = LocalFolder | RemoteFolder


def run_folder_of(record: RunRecord, folder: Path, host: Local | Ssh, notify: Notify) -> RunFolder:
    """Return the folder of a run: a copy of it if the batch system's programs are on a login node."""
    return RemoteFolder(host, record, folder, notify) if isinstance(host, Ssh) else LocalFolder(folder)


def update_record(record: RunRecord, folder: Path) -> None:
    """Update the record in plan.json, and leave the other contents of the file as they are."""
    stored = read_json(folder / files.PLAN)
    if stored is not None:
        write_json(folder / files.PLAN, {**stored, **render(record)})
