"""Keep the local folder of a run up to date with its nodes, and read the log lines of its ranks (`orch logs`)."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from orch_node.protocol import files, values
from orch_node.protocol.events import Event, Started
from orch_node.protocol.node_reports import LogChunk
from orch_node.protocol.record import RunNode, RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.hosts import fold
from orchestrator.model.printable import LOGIN_SCRIPT_HINT
from orchestrator.runs.follow import LocalRun, Source
from orchestrator.runs.logs import LineParser, LogLine, copied_lines, requested_ranks
from orchestrator.runs.state_files import outcome_in
from orchestrator.runs.store import Positions, Run
from orchestrator.targets.connections.connection import CONNECT_SECONDS, Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.connections.mirror import GIVE_UP_SECONDS, RETRY_SECONDS, Mirror, ReconnectingMirror
from orchestrator.targets.interface import Notify
from orchestrator.targets.ssh.nodes import connection_to, node_program, on_each

BUSY_CONNECT_SECONDS = 60


def event_source(record: RunRecord, folder: Path, node0: Local | Ssh, notify: Notify) -> Source:
    """Return the source of a run's events; `notify` is called when its connection is lost or restored."""
    if not isinstance(node0, Ssh):
        return LocalRun(folder)
    mirror = Mirror(node0, record.run_dir, folder, ranks=len(record.layout))
    return ReconnectingMirror(mirror, record.node0.node, notify)


def copy_state(connection: Local | Ssh, record: RunRecord, folder: Path) -> None:
    """Copy the events and the state of the run from node0.

    Raises:
        ExecuteError: if the files cannot be read from the node or written to the folder.
    """
    if isinstance(connection, Ssh):
        mirror = Mirror(connection, record.run_dir, folder, ranks=len(record.layout))
        mirror.refresh()
        mirror.record_supervisor_end()


def copy_all_files(record: RunRecord, folder: Path, node0: Local | Ssh) -> dict[str, str]:
    """Copy the results of a run from node0, and the logs of all ranks; return the messages of incomplete nodes.

    A node may be too busy to answer while the ranks of a large run end, so nodes that do not answer are asked again.
    """
    errors = copy_logs(record, folder, None, node0=node0, with_results=True)
    ended = outcome_in(folder)
    lost = {node for node, end in ended.nodes.items() if end.lost} if ended else set()
    busy = [
        host for host in record.nodes if host.node not in lost and isinstance(errors.get(host.node), ConnectionLost)
    ]
    for host in busy:
        del errors[host.node]
    errors |= copy_logs(record, folder, None, hosts=busy, with_results=True, connect_seconds=BUSY_CONNECT_SECONDS)
    return {node: error.message for node, error in errors.items()}


def copy_logs(
    record: RunRecord,
    folder: Path,
    rank: int | None,
    *,
    hosts: Sequence[RunNode] | None = None,
    node0: Local | Ssh | None = None,
    with_results: bool = False,
    connect_seconds: int = CONNECT_SECONDS,
) -> dict[str, ExecuteError]:
    """Copy the logs of ranks from node0, and in parallel from the nodes that have not handed theirs to node0.

    Args:
        record: the run.
        folder: its local folder.
        rank: the rank; None for all ranks.
        hosts: the nodes; by default all of the run.
        node0: a connection to node0, which stays open; by default a new one is used.
        with_results: whether to copy the results, too. A node may lack the folder then; otherwise this is an error.
        connect_seconds: the time limit of each new connection.

    Returns:
        The errors by node.
    """
    recorded = {placement.rank: placement.node for placement in record.layout}
    nodes, handed = {host.node for host in record.nodes}, set[str]()

    def folder_of(number: int, node: str) -> str:
        return files.RANKS if recorded.get(number) == node else files.moved_logs(node) if node in nodes else ""

    def copy(host: RunNode) -> ExecuteError | None:
        connection = node0 if node0 and host == record.node0 else connection_to(host, connect_seconds)
        if not isinstance(connection, Ssh):
            return None
        mirror = Mirror(connection, record.run_dir, folder, ranks=len(record.layout))
        try:
            if not with_results and not connection.list(record.run_dir):
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


CHECK_SECONDS = 0.2  # between checks whether a rank has started on another node


@dataclass(slots=True, kw_only=True)
class Stream:
    """The logs of one node.

    Attributes:
        options: the options of the node's program that select the lines.
        offsets: how many bytes of each rank's log have been read.
        parser: has the unfinished lines of the ranks.
    """

    record: RunRecord
    host: RunNode
    options: tuple[str, ...]
    offsets: dict[int, int] = field(default_factory=dict)
    parser: LineParser = field(default_factory=LineParser)

    def lines(self) -> Iterator[LogLine]:
        """Yield the lines that have not been read yet, until the node has no more.

        Raises:
            ConnectionLost: if the connection is lost; the next call resumes after the last chunk read.
            ExecuteError: if the node's program fails or prints something else.
        """
        starts = [f"{rank}:{offset}" for rank, offset in self.offsets.items()]
        command = node_program(self.record, "logs", self.record.run_dir, *self.options)
        with closing(connection_to(self.host)) as connection:
            for line in connection.stream((*command, *(["--from", *starts] if starts else []))):
                chunk = self.chunk_of(line)
                for text in chunk.lines:
                    yield from self.parser.parse(chunk.rank, self.host.node, text)
                if chunk.state:
                    yield from self.parser.parse(chunk.rank, self.host.node, chunk.state, finished=False)
                self.offsets[chunk.rank] = chunk.at
            yield from self.parser.end()

    def chunk_of(self, line: str) -> LogChunk:
        """Return the chunk in a line of output; raise ExecuteError if it does not belong to this run."""
        try:
            chunk = values.parse_known(LogChunk, line, "a chunk of a log")
        except ProtocolError as error:
            raise ExecuteError(f"{self.host.node}: {error}", hint=LOGIN_SCRIPT_HINT) from None
        if not 0 <= chunk.rank < len(self.record.layout) or chunk.at < 0:
            last_rank = len(self.record.layout) - 1
            raise ExecuteError(
                f"{self.host.node}: unexpected rank {chunk.rank} in the log of this run, which has ranks 0 to "
                f"{last_rank}.",
                hint="The record on the node may belong to another run, or another program writes to the folder.",
            )
        return chunk

    def lines_with_reconnects(self, notify: Notify) -> Iterator[LogLine]:
        """Yield the lines, and reconnect whenever the connection is lost.

        Raises:
            ConnectionLost: if the node cannot be reached for GIVE_UP_SECONDS.
        """
        lost_at: float | None = None
        while True:
            try:
                for line in self.lines():
                    if lost_at is not None:
                        notify(f"connected to {self.host.node} again")
                        lost_at = None
                    yield line
                return
            except ConnectionLost as error:
                if lost_at is None:
                    notify(f"{error.message} Reconnecting.")
                    lost_at = time.monotonic()
                if time.monotonic() - lost_at > GIVE_UP_SECONDS:
                    raise
                time.sleep(RETRY_SECONDS)


class RankNodes:
    """The nodes of a run's ranks, learned from its events while they are being watched.

    Attributes:
        nodes: the node of each rank that has started.
        watched: whether the events are being read now.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, str] = {}
        self.watched = False

    def watch(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events unchanged, and remember where each rank has started."""
        self.watched = True
        try:
            for event in events:
                if isinstance(event, Started) and event.node is not None:
                    self.nodes[event.rank] = event.node
                yield event
        finally:
            self.watched = False


class Streams:
    """The logs of the nodes that may hold requested lines.

    For a single rank of a run that is being watched, these are only the nodes on which the rank
    has started; otherwise they are all nodes.

    Attributes:
        rank: the rank to read, or None for all ranks.
        earlier: the sizes of the logs before the run was resumed, if only later lines are requested.
        rank_nodes: the nodes of the ranks, as far as they are known.
        followed_rank: the rank if only the nodes on which it starts are read.
        errors: why the lines of a node cannot be read.
        read_nodes: the nodes with an error that have sent lines before.
    """

    def __init__(
        self, record: RunRecord, rank: int | None, earlier: Positions, rank_nodes: RankNodes, notify: Notify
    ) -> None:
        self.record = record
        self.rank = rank
        self.earlier = earlier
        self.rank_nodes = rank_nodes
        self.notify = notify
        self.followed_rank = rank if rank_nodes.watched else None
        self.streamed_nodes: set[str] = set()
        self.errors: dict[str, str] = {}
        self.read_nodes: set[str] = set()

    def new(self) -> list[Stream]:
        """Return a stream for each node that does not have one yet."""
        hosts = [host for host in self.record.nodes if host.node not in self.streamed_nodes]
        if self.followed_rank is not None:
            node = self.rank_nodes.nodes.get(self.followed_rank)
            hosts = [host for host in hosts if host.node == node]
        self.streamed_nodes.update(host.node for host in hosts)
        rank = ("--rank", str(self.rank)) if self.rank is not None else ()
        options = (*["--latest"] * bool(self.earlier.events), *rank)
        return [Stream(record=self.record, host=host, options=options) for host in hosts]


def log_lines(streams: Streams, run: Run, *, follow: bool) -> Iterator[LogLine]:
    """Yield the lines in the order of time, or with `follow` as they are written until the run has ended.

    The lines of one rank are always in order. If a node does not respond, its lines come from the
    copy in the run's folder.

    Raises:
        RequestError: if the run does not have the requested rank.
        ExecuteError: at the end, if a node has not responded.
    """
    record, errors = streams.record, streams.errors
    nodes = requested_ranks(run, streams.rank)
    if follow and not run.has_ended:
        yield from interleaved_lines(streams)
        unread = {rank: node for rank, node in nodes.items() if node in errors.keys() - streams.read_nodes}
        yield from copied_lines(run, unread, {})
    else:
        ran_on = {event.node for event in run.events() if isinstance(event, Started) and event.rank in nodes}
        log_nodes = {record.node0.node, *ran_on, *nodes.values()}  # node0 may have the logs of other nodes
        hosts = [host for host in record.nodes if host.node in log_nodes]
        copy_errors = copy_logs(record, run.folder, streams.rank, hosts=hosts)
        errors |= {node: error.message for node, error in copy_errors.items()}
        for message in errors.values():
            streams.notify(message)
        yield from copied_lines(run, nodes, streams.earlier.logs)
    if errors:
        raise ExecuteError(
            f"Lines may be missing: no response from {fold(errors)}.", hint="Run the same command again."
        )


def interleaved_lines(streams: Streams) -> Iterator[LogLine]:
    """Yield the lines of all streams as they arrive."""
    # The queue is bounded so that a slow terminal slows the nodes down instead of filling the memory.
    lines: queue.Queue[LogLine | None] = queue.Queue(maxsize=10_000)

    def read(stream: Stream) -> None:
        try:
            for line in stream.lines_with_reconnects(streams.notify):
                lines.put(line)
        except ExecuteError as error:
            streams.errors[stream.host.node] = error.message
            streams.notify(error.message)
            if stream.offsets:
                streams.read_nodes.add(stream.host.node)
        finally:
            lines.put(None)

    running = 0
    while True:
        # Whether the rank may still start on another node: read before the streams, so that no new one is missed.
        grows = streams.followed_rank is not None and streams.rank_nodes.watched
        for stream in streams.new() if lines.empty() else ():
            threading.Thread(target=read, args=(stream,), daemon=True).start()
            running += 1
        if not (running or grows):
            return
        try:
            item = lines.get(timeout=CHECK_SECONDS if grows else None)
        except queue.Empty:
            continue
        if item is None:
            running -= 1
        else:
            yield item
