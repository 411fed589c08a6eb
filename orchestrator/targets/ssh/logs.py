"""Keep the local folder of a run up to date with its nodes, and read the log lines of its ranks (`orch logs`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import MappingProxyType

from orch_node.protocol import files
from orch_node.protocol.events import Event, Started
from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.errors import ExecuteError
from orchestrator.model.hosts import fold
from orchestrator.runs.follow import POLL_SECONDS, LocalRun, Source
from orchestrator.runs.logs import LogLine, copied_lines, followed_lines, requested_ranks
from orchestrator.runs.state_files import outcome_in
from orchestrator.runs.store import Positions, Run
from orchestrator.targets.connections.connection import CONNECT_SECONDS, Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.connections.mirror import Mirror
from orchestrator.targets.interface import Notify
from orchestrator.targets.ssh.nodes import connection_to, on_each

BUSY_CONNECT_SECONDS = 60
# Between two copies of the logs of a node: with many nodes, each is asked less often.
FOLLOW_SECONDS = 0.2
NODE_SECONDS = 0.01


def event_source(record: RunRecord, folder: Path, node0: Local | Ssh, notify: Notify) -> Source:
    """Return the source of a run's events; `notify` is called when its connection is lost or restored."""
    if not isinstance(node0, Ssh):
        return LocalRun(folder)
    return Mirror(node0, record.run_dir, folder, ranks=len(record.layout), notify=notify)


def copy_all_files(record: RunRecord, folder: Path, node0: Local | Ssh) -> dict[str, str]:
    """Copy the results of a run from node0, and the logs of all ranks; return the messages of incomplete nodes.

    A node may be too busy to answer soon while the ranks of a large run end.
    """
    ended = outcome_in(folder)
    lost = [node for node, end in ended.nodes.items() if end.lost] if ended else []
    connect_seconds = {host.node: BUSY_CONNECT_SECONDS for host in record.nodes if host.node not in lost}
    errors = copy_logs(record, folder, None, node0=node0, with_results=True, connect_seconds=connect_seconds)
    return {node: error.message for node, error in errors.items()}


def copy_logs(
    record: RunRecord,
    folder: Path,
    rank: int | None,
    *,
    hosts: Sequence[RunNode] | None = None,
    node0: Local | Ssh | None = None,
    with_results: bool = False,
    connect_seconds: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, ExecuteError]:
    """Copy the logs of ranks from node0, and in parallel from the nodes that have not handed theirs to node0.

    Args:
        record: the run.
        folder: its local folder.
        rank: the rank; None for all ranks.
        hosts: the nodes; by default all of the run.
        node0: a connection to node0, which stays open; by default a new one is used.
        with_results: whether to copy the results, too. A node may lack the folder then; otherwise this is an error.
        connect_seconds: the time limits of new connections to nodes, by node.

    Returns:
        The errors by node.
    """
    handed = set[str]()
    folder_of = partial(local_folder, record)

    def copy(host: RunNode) -> ExecuteError | None:
        seconds = connect_seconds.get(host.node, CONNECT_SECONDS)
        connection = node0 if node0 and host == record.node0 else connection_to(host, seconds)
        if not isinstance(connection, Ssh):
            return None
        mirror = Mirror(connection, record.run_dir, folder, ranks=len(record.layout))
        try:
            if not with_results and not connection.sizes(record.run_dir):
                raise ExecuteError(
                    f"{record.run_dir} does not exist.", hint="The run's folder on the node was deleted."
                )
            if host == record.node0:
                if with_results:
                    mirror.finish(record.output_dir)
                    mirror.record_supervisor_end()
                handed.update(mirror.copy_handed_logs(folder_of))
            mirror.copy_logs(rank, lambda number: folder_of(number, host.node))
        except ExecuteError as error:
            return error
        finally:
            if connection is not node0:
                connection.close()
        return None

    errors: dict[str, ExecuteError] = {}
    hosts = record.nodes if hosts is None else hosts
    first = [host for host in hosts if host == record.node0]
    for group in (first, [host for host in hosts if host not in first]):
        remaining = [host for host in group if host.node not in handed]
        errors |= {host.node: error for host, error in zip(remaining, on_each(remaining, copy), strict=True) if error}
    return errors


def local_folder(record: RunRecord, rank: int, node: str) -> str:
    """Return the local folder for the logs of a rank from a node; '' if the run has no such node."""
    if node in [placement.node for placement in record.layout if placement.rank == rank]:
        return files.RANKS
    return files.moved_logs(node) if node in [host.node for host in record.nodes] else ""


class RankNodes:
    """The nodes of a run's ranks, learned from its events while they are being watched.

    Attributes:
        nodes: the node of each rank that has started.
        watched: whether the events are being read now.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, str] = {}
        self.watched = False

    def watch(self, batches: Iterable[list[Event]]) -> Iterator[list[Event]]:
        """Yield the events unchanged, and remember where each rank has started."""
        self.watched = True
        try:
            for events in batches:
                self.nodes |= {event.rank: event.node for event in events if isinstance(event, Started) and event.node}
                yield events
        finally:
            self.watched = False


class LogCopies:
    """Keeps the local logs of a run like those on its nodes, each in a thread, while the run is followed.

    Attributes:
        rank: the rank whose logs are copied, from the nodes on which it starts; None for all ranks.
        problems: why lines of nodes may be missing, by node.
    """

    def __init__(self, record: RunRecord, folder: Path, rank: int | None, notify: Notify) -> None:
        self.record = record
        self.folder = folder
        self.rank = rank
        self.notify = notify
        self.problems: dict[str, str] = {}
        self.threads: dict[str, threading.Thread] = {}
        self.ended = threading.Event()

    def updates(self, rank_nodes: RankNodes, batches: Iterable[list[Event]]) -> Iterator[object]:
        """Yield whenever there may be new lines until the run has ended, which another thread may watch already."""
        try:
            for _ in batches if not rank_nodes.watched else ():
                self.start(rank_nodes)
                yield None
            while rank_nodes.watched:
                self.start(rank_nodes)
                yield None
                time.sleep(POLL_SECONDS)
            self.start(rank_nodes)
        finally:
            self.ended.set()
        for thread in self.threads.values():
            thread.join()

    def start(self, rank_nodes: RankNodes) -> None:
        """Start to copy from further nodes that may have lines."""
        for host in self.record.nodes:
            is_needed = self.rank is None or rank_nodes.nodes.get(self.rank) == host.node
            if host.via and is_needed and host.node not in self.threads:
                self.threads[host.node] = threading.Thread(target=self.copy, args=(host,), daemon=True)
                self.threads[host.node].start()

    def copy(self, host: RunNode) -> None:
        """Copy the logs of a node until the run has ended."""
        with closing(connection_to(host)) as connection:
            assert isinstance(connection, Ssh)
            ranks = len(self.record.layout)
            mirror = Mirror(connection, self.record.run_dir, self.folder, ranks=ranks, notify=self.notify)
            is_last = False
            try:
                while not is_last:
                    is_last = self.ended.is_set()
                    mirror.attempt(
                        lambda: mirror.copy_logs(self.rank, lambda rank: local_folder(self.record, rank, host.node)),
                        None,
                    )
                    self.ended.wait(FOLLOW_SECONDS + NODE_SECONDS * len(self.threads))
                if mirror.lost_since is not None:
                    self.problems[host.node] = "no response"
            except ExecuteError as error:
                self.problems[host.node] = error.message
                self.notify(error.message)


def log_lines(copies: LogCopies, run: Run, earlier: Positions, updates: Iterable[object] | None) -> Iterator[LogLine]:
    """Yield the lines in the order of time, or with `updates` as they are written until the run has ended.

    If a node does not respond, its lines come from the copy in the run's folder.

    Args:
        copies: what may be copied from the nodes.
        run: the run.
        earlier: the sizes of the logs before the run was resumed, if only later lines are requested.
        updates: those of `copies`, to follow the run.

    Raises:
        RequestError: if the run does not have the requested rank.
        ExecuteError: at the end, if a node has not responded.
    """
    nodes = requested_ranks(run, copies.rank)
    if updates is not None:
        yield from followed_lines(run.folder, lambda: nodes, earlier.logs, updates)
    else:
        ran_on = {event.node for event in run.events() if isinstance(event, Started) and event.rank in nodes}
        log_nodes = {copies.record.node0.node, *ran_on, *nodes.values()}  # node0 may have the logs of other nodes
        hosts = [host for host in copies.record.nodes if host.node in log_nodes]
        errors = copy_logs(copies.record, run.folder, copies.rank, hosts=hosts)
        copies.problems |= {node: error.message for node, error in errors.items()}
        for message in copies.problems.values():
            copies.notify(message)
        yield from copied_lines(run, nodes, earlier.logs)
    if copies.problems:
        raise ExecuteError(
            f"Lines may be missing: no response from {fold(copies.problems)}.", hint="Run the same command again."
        )
