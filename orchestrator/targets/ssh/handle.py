"""Start, follow, stop and fetch a run on this machine or on nodes reached through SSH."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from copy import copy
from functools import partial
from pathlib import Path, PurePosixPath

from orch_node.protocol import files
from orch_node.protocol.events import Event, Launched, Started, Waiting
from orch_node.protocol.node_names import fold_by_text
from orch_node.protocol.outcome import FAILED, STOPPED
from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.errors import ConnectionLost, ExecuteError, OrchError, RequestError
from orchestrator.files import state_home, write_whole
from orchestrator.model.hosts import Nodes, fold
from orchestrator.planning.plan import Plan
from orchestrator.planning.run_files import project_copy
from orchestrator.runs import follow, store
from orchestrator.runs.fetch import Collected, FetchListener, Source
from orchestrator.runs.logs import LogLine, copied_lines, followed_lines, requested_ranks
from orchestrator.runs.outcome import CleanupReport, RunOutcome, outcome_of
from orchestrator.runs.state_files import outcome_in, supervisor_of
from orchestrator.targets.connections.connection import CONNECT_SECONDS, Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.connections.mirror import Mirror
from orchestrator.targets.execute import errors_in, execute, on_each
from orchestrator.targets.fetch import fetch_files, fetch_project, requested_node
from orchestrator.targets.interface import FetchRequest, NodeCommands, RunHandle
from orchestrator.targets.ssh import find
from orchestrator.targets.ssh.nodes import connection_to, on_run

END_SECONDS = 10.0  # time limit for a supervisor to end after it has written its outcome
BUSY_CONNECT_SECONDS = 60
# Between two copies of the logs of a node: with many nodes, each is asked less often.
FOLLOW_SECONDS = 0.2
NODE_SECONDS = 0.01


class SshHandle(RunHandle):
    """A run whose supervisor writes the run's files on node0.

    Attributes:
        folder: the run's folder on this machine: a copy of node0's, or node0's own.
        node0: the connection to node0, which is opened when it is first used.
        source: the events of the run, as they arrive in `folder`.
        rank_nodes: the node of each rank that has started, learned from the events while they are being read.
        watching: set while the events are being read; copies of this handle share it.
        problems: why lines of nodes may be missing, by node.
        stays_connected: whether refresh() keeps its connection until finish(), for a process that follows the run.
    """

    def __init__(
        self, record: RunRecord, folder: Path, earlier: store.Positions | None = None, *, stays_connected: bool = False
    ) -> None:
        super().__init__(record, folder, earlier)
        self.node0 = connection_to(record.node0)
        self.rank_nodes: dict[int, str] = {}
        self.watching = threading.Event()
        self.problems: dict[str, str] = {}
        self.threads: dict[str, threading.Thread] = {}
        self.logs_ended = threading.Event()
        self.source: follow.Source = follow.LocalRun(folder)
        if isinstance(self.node0, Ssh):
            self.source = self.mirror_of(self.node0)
        self.stays_connected = stays_connected

    def started(self) -> None:
        """Wait until the ranks have been launched, the run waits for cores, or it has ended."""
        for event in self.events():
            if isinstance(event, (Launched, Waiting)):
                return

    def events(self) -> Iterator[Event]:
        for events in self.event_batches():
            yield from events

    def event_batches(self) -> Iterator[list[Event]]:
        """Yield the new events again and again until the run has ended, and remember where each rank has started."""
        ranks = len(self.record.layout)
        self.watching.set()
        try:
            for events in follow.follow(self.folder, self.source, ranks=ranks, offset=self.earlier.events):
                starts = [(event.rank, event.node) for event in events if isinstance(event, Started) and event.node]
                self.rank_nodes |= dict(starts)
                yield events
        finally:
            self.watching.clear()

    def interrupt(self) -> None:
        pid = follow.await_start(self.folder, self.source)
        if pid is not None:
            self.source.terminate(pid)
        for _ in follow.follow(self.folder, self.source, ranks=0):
            pass

    def refresh(self) -> None:
        with ExitStack() as at_end:
            at_end.callback(self.node0.close)
            if isinstance(self.source, Mirror):
                self.source.copy_state()
                self.source.record_supervisor_end()
            if self.stays_connected:
                at_end.pop_all()

    def finish(self) -> RunOutcome:
        for nodes, reason in fold_by_text(self.copy_logs(node0=self.node0)):
            self.notify(f"the files of {nodes} are incomplete: {reason}")
        return outcome_of(store.load(self.folder))

    def logs(self, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
        run = store.load(self.folder)
        nodes, problems = requested_ranks(run, rank), dict[str, str]()
        if follow and not run.has_ended:
            reader = copy(self)  # another reader may end earlier
            reader.problems, reader.threads, reader.logs_ended = problems, {}, threading.Event()
            yield from followed_lines(self.folder, lambda: nodes, self.earlier.logs, reader.log_updates(rank))
        else:
            ran_on = {event.node for event in run.events() if isinstance(event, Started) and event.rank in nodes}
            log_nodes = {self.record.node0.node, *ran_on, *nodes.values()}  # node0 may have the logs of other nodes
            problems |= self.copy_logs(rank, [host for host in self.record.nodes if host.node in log_nodes])
            for message in problems.values():
                self.notify(message)
            yield from copied_lines(run, nodes, self.earlier.logs)
        if problems:
            raise ExecuteError.about("missing-lines", nodes=fold(problems))

    def stop(self) -> CleanupReport:
        report = find.stop(self.record, planned=store.load(self.folder).state == "planned")
        if report.nodes[0].state != "unreachable" and store.load(self.folder).record.node0 == self.record.node0:
            try:
                self.source.refresh()
            except ExecuteError as error:
                self.notify(error.message)
        return report

    def discard(self) -> None:
        """Delete the run's folder on this machine and on its nodes, once its supervisor has ended."""
        deadline = time.monotonic() + END_SECONDS
        supervisor = supervisor_of(self.folder)
        while supervisor and not self.source.lost(supervisor.pid) and time.monotonic() < deadline:
            time.sleep(follow.POLL_SECONDS)
        if problem := unsafe_to_delete(self.record, self.folder):
            self.notify(f"{self.record.run_dir} was not deleted: {problem}")
            return

        def delete(host: RunNode) -> None:
            with closing(connection_to(host)) as connection:
                connection.capture(("rm", "-rf", "--", self.record.run_dir), seconds=END_SECONDS)

        errors = errors_in(on_each(self.record.all_nodes, delete))
        for nodes, reason in fold_by_text({node: error.message for node, error in errors.items()}):
            self.notify(f"{nodes}: {self.record.run_dir} was not deleted: {reason}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def commands(self, nodes: Nodes | None) -> NodeCommands:
        return on_run(self.record, nodes)

    def fetch(self, request: FetchRequest, listener: FetchListener) -> Collected:
        node = requested_node(self.record, request.node)
        hosts = [node] if request.node or request.project else self.record.all_nodes
        with ExitStack() as stack:
            connections = {host.node: stack.enter_context(closing(connection_to(host))) for host in hosts}
            sources = [
                Source(name=name, remote=remote, python=self.record.python, run_dir=self.record.run_dir)
                for name, remote in connections.items()
            ]
            if request.project:
                is_remote, folder = any(host.via for host in self.record.nodes), project_copy(self.record.run_dir)
                store_path = PurePosixPath(self.record.train).parent if is_remote else state_home()
                return fetch_project(sources[0], f"{store_path}/store", folder, self.folder, request, listener)
            return fetch_files(sources, self.folder, request, listener)

    # The copies of the ranks' logs: once, or in a thread for each node while the run is followed.

    def mirror_of(self, connection: Ssh) -> Mirror:
        """Return a copy of the run's folder on a node."""
        ranks = len(self.record.layout)
        return Mirror(connection, self.record.run_dir, self.folder, ranks=ranks, notify=lambda line: self.notify(line))

    def copy_logs(
        self, rank: int | None = None, hosts: Sequence[RunNode] = (), node0: Local | Ssh | None = None
    ) -> dict[str, str]:
        """Copy logs from node0, and in parallel from the nodes that have not handed theirs to node0.

        Args:
            rank: the rank whose logs are copied; None for all ranks.
            hosts: the nodes; by default all of the run.
            node0: the connection to node0 if the run has just ended; it is closed. Then the results are copied, too,
                nodes may be too busy to answer soon, and may have no folder of the run; otherwise this is an error.

        Returns:
            The messages of the errors by node.
        """
        record, ended, handed = self.record, outcome_in(self.folder), set[str]()
        lost = {node for node, end in ended.nodes.items() if end.lost} if ended else set[str]()

        def copy_from(host: RunNode) -> None:
            seconds = BUSY_CONNECT_SECONDS if node0 and host.node not in lost else CONNECT_SECONDS
            connection = node0 if node0 and host == record.node0 else connection_to(host, seconds)
            if not isinstance(connection, Ssh):
                return
            mirror = self.mirror_of(connection)
            with closing(connection):
                if not node0 and not connection.sizes(record.run_dir):
                    raise ExecuteError.about("deleted-run", folder=record.run_dir)
                if host == record.node0:
                    if node0:
                        mirror.finish(record.output_dir)
                        mirror.record_supervisor_end()
                    handed.update(mirror.copy_handed_logs(self.folder_of))
                mirror.copy_logs(rank, partial(self.folder_of, node=host.node))

        hosts = hosts or record.nodes
        errors = errors_in(on_each([host for host in hosts if host == record.node0], copy_from))
        peers = [host for host in hosts if host != record.node0 and host.node not in handed]
        errors |= errors_in(on_each(peers, copy_from))
        return {node: error.message for node, error in errors.items()}

    def folder_of(self, rank: int, node: str) -> str:
        """Return the local folder for the logs of a rank from a node; '' if the run has no such node."""
        if node in [placement.node for placement in self.record.layout if placement.rank == rank]:
            return files.RANKS
        return files.MOVED_LOGS.format(node) if node in [host.node for host in self.record.nodes] else ""

    def log_updates(self, rank: int | None) -> Iterator[object]:
        """Yield whenever there may be new lines until the run has ended, which another thread may watch already.

        Args:
            rank: the rank whose logs are copied, from the nodes on which it starts; None for all ranks.
        """
        try:
            for _ in () if self.watching.is_set() else self.event_batches():
                self.start_copies(rank)
                yield None
            while self.watching.is_set():
                self.start_copies(rank)
                yield None
                time.sleep(follow.POLL_SECONDS)
            self.start_copies(rank)
        finally:
            self.logs_ended.set()
        for thread in self.threads.values():
            thread.join()

    def start_copies(self, rank: int | None) -> None:
        """Start to copy from further nodes that may have lines."""
        for host in self.record.nodes:
            is_needed = rank is None or self.rank_nodes.get(rank) == host.node
            if host.via and is_needed and host.node not in self.threads:
                thread = threading.Thread(target=self.copy_while_followed, args=(host, rank), daemon=True)
                self.threads[host.node] = thread
                thread.start()

    def copy_while_followed(self, host: RunNode, rank: int | None) -> None:
        """Copy the logs of a node until the run has ended."""
        with closing(connection_to(host)) as connection:
            assert isinstance(connection, Ssh)
            mirror = self.mirror_of(connection)
            folder_of = partial(self.folder_of, node=host.node)
            is_last = False
            try:
                while not is_last:
                    is_last = self.logs_ended.is_set()
                    mirror.attempt(lambda: mirror.copy_logs(rank, folder_of), None)
                    self.logs_ended.wait(FOLLOW_SECONDS + NODE_SECONDS * len(self.threads))
                if mirror.lost_since is not None:
                    self.problems[host.node] = "no response"
            except ExecuteError as error:
                self.problems[host.node] = error.message
                self.notify(error.message)


def unsafe_to_delete(record: RunRecord, folder: Path) -> str:
    """Return why the folders of a run may not be its own, or '' if they are.

    On this machine a run may be in any folder of runs, on nodes reached through SSH only in the
    folder `runs` of orch's folder.
    """
    path = PurePosixPath(record.run_dir)
    is_normal = path.is_absolute() and ".." not in path.parts
    if not is_normal or not files.is_run_id(record.run_id) or {path.name, folder.name} != {record.run_id}:
        return f"it is not named like run {record.run_id!r:.80}"
    if record.node0.via:
        return "" if path.parent.name == "runs" and len(path.parts) > 3 else "it is not in a folder of runs"
    return "" if record.run_dir == str(folder.absolute()) else f"the run is in {folder}"


UNREACHABLE_HINT = (
    "Check that it is on and reachable from this machine. --exclude NODE trains without it; "
    "ansible_host sets its address."
)


def start(plan: Plan, folder: Path) -> store.Positions | None:
    """Record the plan and do its steps; the run continues without this program.

    Returns:
        What belongs to earlier attempts of a resumed run; None for a new run.

    Raises:
        ExecuteError: if a step fails. If the run has not begun by then, it is recorded as failed,
            and as stopped if the start is interrupted.
        RequestError: if a module is missing that the script imports; then the record of a new run is removed.
    """
    earlier_plan = store.plan_bytes(folder)
    earlier_run = store.load(folder) if earlier_plan else None
    store.create(plan, folder)
    try:
        if earlier_run and plan.run.node0.via:
            # What is here already is not shown again. Of nodes that do not respond, nothing is copied.
            SshHandle(earlier_run.record, folder).copy_logs()
            store.move_logs(folder, earlier_run.record, plan.run)
        earlier = store.positions(folder) if earlier_plan else None
        start_steps(plan, folder)
        return earlier
    except (OrchError, KeyboardInterrupt) as error:
        has_ended = isinstance(error, RequestError) or (folder / files.OUTCOME).exists()
        if earlier_plan and earlier_run and has_ended:  # the next resume continues from the earlier attempt
            write_whole(folder / files.PLAN, earlier_plan)
            if plan.run.node0.via:
                store.move_logs(folder, plan.run, earlier_run.record)
        elif isinstance(error, RequestError):  # as with other wrong requests, nothing is left
            shutil.rmtree(folder)
        raise


def start_steps(plan: Plan, folder: Path) -> None:
    """Do the steps of a plan.

    Raises:
        OrchError: if a step fails.
    """
    hosts = {host.node: host for step in plan.steps for host in step.nodes}
    *preparation, supervisor_start = plan.steps
    with ExitStack() as stack:
        connections = {node: stack.enter_context(closing(connection_to(host))) for node, host in hosts.items()}
        try:
            execute(preparation, connections)
        except ExecuteError as error:
            store.record_end(folder, FAILED, error.message)
            hint = UNREACHABLE_HINT if error.hint == ConnectionLost.default_hint else error.hint
            raise ExecuteError(f"{error.message.removesuffix('.')}; nothing was started.", hint=hint) from None
        except KeyboardInterrupt:
            store.record_end(folder, STOPPED)
            raise
        store.forget_end(folder)
        execute([supervisor_start], connections)
