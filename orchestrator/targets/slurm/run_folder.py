"""Where the files of a run are: on a file system that this machine sees, or behind a login node."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from orch_node import whole_files
from orch_node.protocol import files, record, slurm
from orch_node.protocol.record import RunRecord
from orch_node.tail import last_text

from orchestrator.errors import ExecuteError
from orchestrator.files import write_whole
from orchestrator.runs.follow import LAST_WORDS
from orchestrator.runs.state_files import PLAN
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.connections.mirror import LARGEST_STATE, Mirror, MirroredNode, ReconnectingMirror
from orchestrator.targets.interface import Tell
from orchestrator.targets.slurm.location import at_home

Result = TypeVar("Result")
REFRESH_SECONDS = 0.5  # a login node is asked by many
SAID = re.compile(r"slurm-[0-9_]+\.out", re.ASCII)  # what a job says beside its run
STATE = (files.SUPERVISOR, files.OUTCOME, files.LAYOUT, slurm.JOB)


class RunFolder(Protocol):
    """What following a run needs of the place of its files; all may raise ExecuteError."""

    def refresh(self) -> None:
        """Bring the folder here up to date."""

    def write(self, name: str, text: str) -> None:
        """A file of the run, for all who look."""

    def has(self, name: str) -> bool:
        """Return whether the job has written this file."""

    def said(self) -> str:
        """The last words of the job itself."""

    def take_logs(self, ranks: Iterable[int]) -> None: ...

    def finish(self, output_dir: str | None) -> None:
        """What is worth having here of a run that has ended."""

    def attempt(self, act: Callable[[], Result], otherwise: Result) -> Result:
        """Ask the host with Slurm's programs; `otherwise` while it cannot be reached."""


class SeenFolder:
    """The folder of the run is the one here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def refresh(self) -> None:
        """It is up to date."""

    def write(self, name: str, text: str) -> None:
        whole_files.write(self.folder / name, text)

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def said(self) -> str:
        logs = sorted(self.folder.glob("slurm-*.out"))
        return last_text(logs[-1], LAST_WORDS).strip() if logs else ""

    def take_logs(self, ranks: Iterable[int]) -> None:
        """They are here."""

    def finish(self, output_dir: str | None) -> None:
        """It is all here."""

    def attempt(self, act: Callable[[], Result], otherwise: Result) -> Result:
        return act()


class JobMirror(Mirror):
    """The copy of a job's run: one that is put back into the queue takes its outcome away again."""

    def __init__(self, remote: MirroredNode, run_dir: str, folder: Path, *, ranks: int) -> None:
        super().__init__(remote, run_dir, folder, ranks=ranks)
        self.renewed = -REFRESH_SECONDS

    def refresh(self) -> None:
        if time.monotonic() - self.renewed < REFRESH_SECONDS:
            return
        # What was written before the end is here before the end is.
        found = {name: self.content(name) for name in STATE}
        self.append(files.EVENTS)
        for name, content in found.items():
            self.keep(name, content)
        self.renewed = time.monotonic()

    def content(self, name: str) -> bytes | None:
        return self.remote.read(f"{self.run_dir}/{name}", 0, LARGEST_STATE)

    def keep(self, name: str, content: bytes | None) -> None:
        if content is None:
            (self.folder / name).unlink(missing_ok=True)
        else:
            write_whole(self.folder / name, content)

    def said(self) -> str:
        names = [name for name in self.remote.list(self.run_dir) if SAID.fullmatch(name)]
        words = self.content(names[-1]) if names else None
        return (words or b"").decode(errors="replace")[-LAST_WORDS:].strip()


class MirroredFolder(ReconnectingMirror):
    """The run lives on a file system that a login node sees; the folder here is a copy of it."""

    def __init__(self, host: Ssh, record: RunRecord, folder: Path, tell: Tell) -> None:
        mirror = JobMirror(host, record.run_dir, folder, ranks=len(record.layout))
        super().__init__(mirror, host.node, tell)
        self.host = host

    def write(self, name: str, text: str) -> None:
        self.host.put(f"{self.mirror.run_dir}/{name}", text)
        write_whole(self.mirror.folder / name, text)

    def has(self, name: str) -> bool:
        path = f"{self.mirror.run_dir}/{name}"
        return self.attempt(lambda: self.host.read(path, 0, 1) is not None, True)

    def take_logs(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.attempt(lambda rank=rank: self.mirror.append(files.rank_log(rank)), None)  # type: ignore[misc]

    def finish(self, output_dir: str | None) -> None:
        self.mirror.finish(output_dir)
        self.mirror.take_logs()


def run_folder_of(record: RunRecord, folder: Path, host: Local | Ssh, tell: Tell) -> RunFolder:
    if isinstance(host, Ssh):
        return MirroredFolder(host, record, folder, tell)
    return SeenFolder(folder)


def keep_there(found: RunRecord, host: Ssh) -> None:
    """The record, for whoever looks at the run from the cluster itself. Raises ExecuteError."""
    text = json.dumps(record.render(at_home(found)), indent=1) + "\n"
    host.put(f"{found.run_dir}/{PLAN}", text)


def remove_there(run_dir: str, host: Ssh, names: Iterable[str]) -> None:
    """What was written of a run that nothing came of. What cannot be removed stays."""
    try:
        host.capture(("rm", "-f", "--", *(f"{run_dir}/{name}" for name in names)), seconds=30.0)
        host.capture(("rmdir", "--", run_dir), seconds=30.0)
    except ExecuteError:
        pass
