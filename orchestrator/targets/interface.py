"""Define the interface of a target and of its runs, and check records of runs that others have sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orch_node.protocol.record import RunRecord

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.runs.store import Notify as Notify
from orchestrator.runs.store import Positions

if TYPE_CHECKING:
    from orch_node.protocol.events import Event
    from orch_node.protocol.node_reports import NodeUsage

    from orchestrator.model.decision import Finding
    from orchestrator.model.hosts import Nodes
    from orchestrator.model.project import Project
    from orchestrator.planning.plan import Plan
    from orchestrator.planning.request import Resume, TargetOptions, TrainRequest, UnsupportedOption
    from orchestrator.runs.fetch import Collected, FetchListener
    from orchestrator.runs.logs import LogLine
    from orchestrator.runs.outcome import CleanupReport, RunOutcome
    from orchestrator.runs.rows import RunRow


def ignore(line: str) -> None:
    """Ignore a line about the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """The files that `orch fetch` copies.

    Attributes:
        source: the requested folder on the nodes, absolute or relative to the output; '' for the output.
        folders: the paths that this folder may have; on the nodes, the first that exists is copied.
        node: the name of the only node whose files are copied, or None for all nodes.
        destination: the folder on this machine, or None for the default.
        patterns: patterns of the paths in the folder to copy; all paths if empty.
        unchanged: SHA-256 by path of files in the folder that are not copied as long as they have this content; None to
            copy all files.
        project: the project that is copied as it was sent, in place of a folder.
    """

    source: str = ""
    folders: tuple[str, ...] = ()
    node: str | None = None
    destination: Path | None = None
    patterns: tuple[str, ...] = ()
    unchanged: Mapping[str, str] | None = None
    project: Project | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunList:
    """The runs that the hosts of a target have reported.

    Attributes:
        rows: the runs, oldest first.
        unreachable: the hosts that did not respond, with the reason.
        warnings: runs that cannot be read or followed, with the reason.
    """

    rows: tuple[RunRow, ...]
    unreachable: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """The run and the hosts that a check is about.

    Attributes:
        inventory: the inventory or the cluster, as a value of `--inventory`; a target that has options reads them.
        options: the options of the target.
        nodes: the number of nodes or pods of the run.
        launcher: the launcher of the run, or None for any.
        image: the image of its ranks, or None.
    """

    inventory: str = ""
    options: tuple[TargetOptions, ...] = ()
    nodes: int = 1
    launcher: str | None = None
    image: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFolder:
    """A folder that all nodes share.

    Attributes:
        host: the host on which the folder is filled, as an argument of `ssh`; empty for this machine.
        root: the path of the folder.
    """

    host: str
    root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNode:
    """A node as it is now.

    Attributes:
        cores: the number of its physical cores that orch may use; 0 if that is unknown.
        usage: who uses it, or None if that is unknown.
        problem: why it has not responded, or was not queried.
        queried: whether it was queried; False if it is not provisioned.
    """

    name: str
    cores: int
    usage: NodeUsage | None
    problem: str = ""
    queried: bool = True


class NodeCommands(Protocol):
    """The nodes of a cluster or of a run, with the environment that its ranks have there."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the names of the nodes."""

    def run(self, argv: tuple[str, ...], receive: Callable[[str, int, bytes], None]) -> dict[str, int | ExecuteError]:
        """Run a command on all nodes in parallel, without input.

        Args:
            argv: the program and its arguments.
            receive: called by several threads with the node, the descriptor (1 or 2) and a part of the output.

        Returns:
            The exit code on each node, or why the command could not be run there.

        Raises:
            KeyboardInterrupt: if Ctrl-C is pressed, after the commands have been ended.
        """

    def shell(self) -> tuple[str, ...]:
        """Return the program on this machine that opens a shell on the first node."""


class RunHandle(ABC):
    """A run on any target.

    Attributes:
        folder: the run's folder on this machine.
        notify: called with each line about the connection to the hosts.
        earlier: the files of earlier attempts, which are not shown.
    """

    def __init__(self, record: RunRecord, folder: Path, earlier: Positions | None = None) -> None:
        self.record = record
        self.folder = folder
        self.notify: Notify = ignore
        self.earlier = earlier or Positions()

    @abstractmethod
    def started(self) -> None:
        """Wait until the run has started, waits in a queue or has ended; raise ExecuteError if it does not start."""

    @abstractmethod
    def events(self) -> Iterator[Event]:
        """Yield the events of the run, from its beginning until it has ended."""

    @abstractmethod
    def interrupt(self) -> None:
        """Ask the run's supervisor to stop all ranks, and wait until it has done so."""

    @abstractmethod
    def refresh(self) -> None:
        """Update the progress and the state of the run on this machine.

        Raises:
            OrchError: if the hosts do not respond, or the run cannot be used.
        """

    @abstractmethod
    def finish(self) -> RunOutcome:
        """Copy the logs and results to this machine, report missing ones, and return the run's outcome."""

    @abstractmethod
    def logs(self, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
        """Yield the lines of the ranks' logs.

        With `follow` this may run in another thread while `events` is consumed; it ends soon after
        the events do.

        Raises:
            RequestError: if the run does not have the requested rank.
            ExecuteError: at the end, if lines may be missing.
        """

    @abstractmethod
    def stop(self) -> CleanupReport:
        """End all processes of the run, and return each node's report."""

    def discard(self) -> None:  # noqa: B027
        """Delete the files of a run that was refused before it started any process.

        By default, keep them: a job has claimed its nodes before its ranks can be refused.
        """

    @abstractmethod
    def commands(self, nodes: Nodes | None) -> NodeCommands:
        """Return the nodes of the run on which a user's commands can run, or those that a pattern names.

        Raises:
            RequestError: if the pattern names no node, or another tool runs commands there.
        """

    @abstractmethod
    def fetch(self, request: FetchRequest, listener: FetchListener) -> Collected:
        """Copy files that the run has written to this machine.

        Raises:
            RequestError: if the request names a node or files that the run does not have.
            ExecuteError: if the files cannot be read or written.
        """


class Target(ABC):
    """An engine whose hosts can train.

    A new target is a subclass, in a folder of this package with an entry in registry.py, or in another package.

    Attributes:
        name: the name of the target in run records.
        refuses: why the target refuses a field of TrainRequest, by the name of the field. It uses
            every other field.
        options: the class of the options that only this target has, or None.
    """

    name: str
    refuses: Mapping[str, UnsupportedOption] = {}
    options: type[TargetOptions] | None = None

    @abstractmethod
    def plan(self, request: TrainRequest, resume: Resume | None = None) -> Plan:
        """Read the files that a request names, and decide how to run it.

        This writes no files. The only host it may query is one that alone knows the nodes' stack.

        Args:
            request: the request.
            resume: the unfinished run whose next attempt is planned; it keeps its id and its folders.
        """

    def check(self, request: CheckRequest) -> Iterator[Finding]:
        """Yield whether runs can start, each finding as soon as it is known; nothing if there is nothing to check."""
        yield from ()

    def measurement_file(self, request: TrainRequest) -> Path | None:
        """Return the file of what `orch bench` measures on the hosts of a request; None if runs there read none."""
        return None

    @abstractmethod
    def start(self, plan: Plan, folder: Path) -> RunHandle:
        """Record the plan in `folder` and do its steps; the run continues without the handle."""

    @abstractmethod
    def handle(self, record: RunRecord, folder: Path) -> RunHandle:
        """Return a handle of a recorded run."""

    @abstractmethod
    def find(self, base: Path, name: str, inventory: str, notify: Notify) -> RunHandle:
        """Return a handle of a run that the hosts of an inventory or a cluster have recorded.

        Args:
            base: the folder of all runs on this machine.
            name: a run id, or `last` for the newest run.
            inventory: the inventory or the cluster, as a value of `--inventory`.
            notify: called with a warning for each host that cannot be queried.

        Raises:
            RequestError: if the hosts have not recorded such a run.
        """

    @abstractmethod
    def shared_folder(self, options: tuple[TargetOptions, ...]) -> SharedFolder:
        """Return the folder that `orch provision --on` fills; raise RequestError if there is none."""

    @abstractmethod
    def commands(self, inventory: str, nodes: Nodes | None, stack: str) -> NodeCommands:
        """Return the nodes of an inventory on which a user's commands can run, or those that a pattern names.

        Raises:
            RequestError: if the pattern names no node, or another tool runs commands there.
        """

    @abstractmethod
    def live_nodes(self, inventory: str, names: Collection[str] | None = None) -> list[LiveNode]:
        """Query the nodes of an inventory, or those with these names, and return who uses them.

        Raises:
            RequestError: if another tool manages the nodes.
        """

    @abstractmethod
    def list_runs(self, inventory: str, base: Path) -> RunList:
        """Return the runs recorded on the hosts of an inventory, in a cluster, or in the local folder of runs."""

    @abstractmethod
    def clean(self, inventory: str | None, base: Path, *, dry_run: bool) -> CleanupReport:
        """End the leftovers of past runs; with `dry_run`, only report them."""


class UntrustedRecordError(RequestError):
    """A run record that is listed, but cannot be used, because a value in it cannot be true."""


def check_output_dir(record: RunRecord, runs: str) -> None:
    """Raise UntrustedRecordError if a run does not write to its own folder below the folder of runs."""
    if record.output_dir not in (None, f"{runs}/{record.run_id}/output"):
        raise UntrustedRecordError.about("output-of-another-run", record=record)
