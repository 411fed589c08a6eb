"""What an engine that holds hosts must be able to do, and what a run of it must."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orch_node.protocol.events import Event
from orch_node.protocol.record import RunRecord

from orchestrator.planning.plan import Plan
from orchestrator.planning.refusal import Refusal
from orchestrator.planning.request import TargetOptions, TrainRequest
from orchestrator.runs.cleanup import CleanupReport
from orchestrator.runs.fetch import Collected, FetchListener
from orchestrator.runs.logs import LogLine
from orchestrator.runs.outcome import Outcome
from orchestrator.runs.rows import RunRow

Tell = Callable[[str], None]  # gets what is to be said of the connection, a line at a time


def silent(line: str) -> None:
    """For whoever has nobody to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What `orch fetch` brings. `source`: a folder of a node; `only`: patterns of paths in it."""

    source: str
    node: str | None = None
    to: Path | None = None
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Runs that are known, oldest first.

    Attributes:
        silent: The hosts that did not answer, with the reason.
        warnings: Runs that cannot be read or followed, with the reason.
        open: What `Target.find` does, without another query of the hosts.
    """

    rows: tuple[RunRow, ...]
    silent: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    open: Callable[[Path, str, Tell], RunHandle] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFolder:
    """A folder that all nodes see. `host`: on which it is filled, as `ssh` takes it; empty for
    this machine. `archive`: whether the stack is also packed, for folders of the nodes' own."""

    host: str
    root: str
    archive: bool = False


class RunHandle(Protocol):
    """One run, wherever it lives: all that later verbs need. Its `folder` is the copy here."""

    record: RunRecord
    folder: Path
    tell: Tell

    def started(self) -> None:
        """Wait until the supervisor has taken the run over. Raises ExecuteError."""

    def events(self) -> Iterator[Event]:
        """Events of the run, from its beginning until it has ended."""

    def interrupt(self) -> None:
        """Ask the run's supervisor to stop all ranks, and wait until it has."""

    def finish(self) -> Outcome:
        """How the run ended; logs and results are here then, and `tell` says which are not."""

    def logs(self, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
        """Lines of the ranks' logs. Raises RequestError, and at the end ExecuteError where some
        may be missing. With `follow` also in another thread while `events` is gone through: it
        then ends soon after that does."""

    def stop(self) -> CleanupReport:
        """End all that is left of the run, everywhere; each node says so."""

    def discard(self) -> None:
        """Delete the files of a run that was refused before it started anything."""

    def fetch(self, wanted: Wanted, listener: FetchListener) -> Collected:
        """Bring what the run has written. Raises RequestError, ExecuteError."""


class Target(Protocol):
    """An engine that holds hosts. A new one is a folder of this package and a line in registry.py.

    `name`: what `--on` and a run's record say. `refuses`: field of TrainRequest -> why this target
    has no use for it, and what to do instead; every other field is consumed.
    """

    name: str
    refuses: Mapping[str, Refusal]

    def plan(self, request: TrainRequest) -> Plan:
        """Read the files, decide. Writes nothing, and asks no host but one that alone knows what
        stack the nodes see."""

    def start(self, plan: Plan, folder: Path) -> RunHandle:
        """Do the plan's steps, recorded in `folder`; the run lives on without the handle."""

    def handle(self, record: RunRecord, folder: Path) -> RunHandle:
        """The run of this record."""

    def find(self, base: Path, name: str, where: str, tell: Tell) -> RunHandle:
        """A run by its id, or `last`, as the hosts of `where` know it (an inventory, a cluster);
        `tell` gets what keeps some of them from being asked."""

    def shared_folder(self, options: tuple[TargetOptions, ...]) -> SharedFolder:
        """What `orch provision --on` fills. Raises RequestError where nodes have none."""

    def list_runs(self, where: str) -> Listed:
        """The runs that the hosts of `where` know."""

    def clean(self, where: str | None, base: Path, *, look: bool) -> CleanupReport:
        """End what past runs have left; with `look`, only tell of it."""
