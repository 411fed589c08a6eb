"""Copy the logs and results of a run from its nodes to its local folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from orch_node.protocol import files
from orch_node.protocol.events import Event, Started
from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.errors import ExecuteError
from orchestrator.runs.follow import POLL_SECONDS
from orchestrator.runs.state_files import outcome_in
from orchestrator.targets.connections.connection import CONNECT_SECONDS, Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.connections.mirror import Mirror
from orchestrator.targets.execute import errors_in, on_each
from orchestrator.targets.interface import Notify
from orchestrator.targets.ssh.nodes import connection_to

BUSY_CONNECT_SECONDS = 60
# Between two copies of the logs of a node: with many nodes, each is asked less often.
FOLLOW_SECONDS = 0.2
NODE_SECONDS = 0.01


class LogCopies:
    """Copies the logs of a run from its nodes once, or each in a thread while the run is followed.

    Attributes:
        nodes: the node of each rank that has started, learned from the events while they are being read.
        watched: whether the events are being read now.
        problems: why lines of nodes may be missing, by node.
    """

    def __init__(self, record: RunRecord, folder: Path, notify: Notify) -> None:
        self.record = record
        self.folder = folder
        self.notify = notify
        self.nodes: dict[int, str] = {}
        self.watched = False
        self.problems: dict[str, str] = {}
        self.threads: dict[str, threading.Thread] = {}
        self.ended = threading.Event()

    def mirror(self, connection: Ssh) -> Mirror:
        """Return a copy of the run's folder on a node."""
        ranks = len(self.record.layout)
        return Mirror(connection, self.record.run_dir, self.folder, ranks=ranks, notify=self.notify)

    def copy_once(
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

        def copy(host: RunNode) -> None:
            seconds = BUSY_CONNECT_SECONDS if node0 and host.node not in lost else CONNECT_SECONDS
            connection = node0 if node0 and host == record.node0 else connection_to(host, seconds)
            if not isinstance(connection, Ssh):
                return
            mirror = self.mirror(connection)
            with closing(connection):
                if not node0 and not connection.sizes(record.run_dir):
                    raise ExecuteError(
                        f"{record.run_dir} does not exist.", hint="The run's folder on the node was deleted."
                    )
                if host == record.node0:
                    if node0:
                        mirror.finish(record.output_dir)
                        mirror.record_supervisor_end()
                    handed.update(mirror.copy_handed_logs(self.folder_of))
                mirror.copy_logs(rank, partial(self.folder_of, node=host.node))

        hosts = hosts or record.nodes
        errors = errors_in(on_each([host for host in hosts if host == record.node0], copy))
        others = [host for host in hosts if host != record.node0 and host.node not in handed]
        errors |= errors_in(on_each(others, copy))
        return {node: error.message for node, error in errors.items()}

    def folder_of(self, rank: int, node: str) -> str:
        """Return the local folder for the logs of a rank from a node; '' if the run has no such node."""
        if node in [placement.node for placement in self.record.layout if placement.rank == rank]:
            return files.RANKS
        return files.moved_logs(node) if node in [host.node for host in self.record.nodes] else ""

    def watch(self, batches: Iterable[list[Event]]) -> Iterator[list[Event]]:
        """Yield the events unchanged, and remember where each rank has started."""
        self.watched = True
        try:
            for events in batches:
                self.nodes |= {event.rank: event.node for event in events if isinstance(event, Started) and event.node}
                yield events
        finally:
            self.watched = False

    def updates(self, rank: int | None, batches: Iterable[list[Event]]) -> Iterator[object]:
        """Yield whenever there may be new lines until the run has ended, which another thread may watch already.

        Args:
            rank: the rank whose logs are copied, from the nodes on which it starts; None for all ranks.
            batches: the events, as watch() yields them.
        """
        try:
            for _ in batches if not self.watched else ():
                self.start(rank)
                yield None
            while self.watched:
                self.start(rank)
                yield None
                time.sleep(POLL_SECONDS)
            self.start(rank)
        finally:
            self.ended.set()
        for thread in self.threads.values():
            thread.join()

    def start(self, rank: int | None) -> None:
        """Start to copy from further nodes that may have lines."""
        for host in self.record.nodes:
            is_needed = rank is None or self.nodes.get(rank) == host.node
            if host.via and is_needed and host.node not in self.threads:
                self.threads[host.node] = threading.Thread(target=self.copy, args=(host, rank), daemon=True)
                self.threads[host.node].start()

    def copy(self, host: RunNode, rank: int | None) -> None:
        """Copy the logs of a node until the run has ended."""
        with closing(connection_to(host)) as connection:
            assert isinstance(connection, Ssh)
            mirror = self.mirror(connection)
            folder_of = partial(self.folder_of, node=host.node)
            is_last = False
            try:
                while not is_last:
                    is_last = self.ended.is_set()
                    mirror.attempt(lambda: mirror.copy_logs(rank, folder_of), None)
                    self.ended.wait(FOLLOW_SECONDS + NODE_SECONDS * len(self.threads))
                if mirror.lost_since is not None:
                    self.problems[host.node] = "no response"
            except ExecuteError as error:
                self.problems[host.node] = error.message
                self.notify(error.message)
