"""`orch logs`: the lines of a run's ranks, from all its nodes, whole and in order."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from orch_node.protocol import logs
from orch_node.protocol.events import Event, Started
from orch_node.protocol.logs import LogChunk
from orch_node.protocol.record import RunNode, RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.command import LOGIN_SCRIPT_HINT
from orchestrator.runs.logs import LogLine, asked_for
from orchestrator.runs.store import Run
from orchestrator.targets.connections.mirror import GIVE_UP_SECONDS, RETRY_SECONDS
from orchestrator.targets.interface import Tell
from orchestrator.targets.ssh.nodes import connection_to, node_program

LOCATE_SECONDS = 0.2  # between looks at where a rank is


@dataclass(slots=True, kw_only=True)
class Stream:
    """The logs of one node. `read`: rank -> the byte that its log was read to."""

    record: RunRecord
    host: RunNode
    options: tuple[str, ...]
    read: dict[int, int] = field(default_factory=dict)

    def lines(self) -> Iterator[LogLine]:
        """Until the node has no more. Raises ConnectionLost; called again it goes on from there."""
        starts = [f"{rank}:{at}" for rank, at in self.read.items()]
        command = node_program(self.record, "logs", self.record.run_dir, *self.options)
        connection = connection_to(self.host)
        try:
            for line in connection.stream((*command, *(["--from", *starts] if starts else []))):
                chunk = self.chunk_of(line)
                for text in chunk.lines:
                    yield LogLine(rank=chunk.rank, node=self.host.node, text=text)
                if chunk.state:
                    yield LogLine(rank=chunk.rank, node=self.host.node, text=chunk.state, finished=False)
                self.read[chunk.rank] = chunk.at
        finally:
            connection.close()

    def chunk_of(self, line: str) -> LogChunk:
        """Raises ExecuteError for what is no part of a log of this run."""
        try:
            chunk = logs.parse(line)
        except ProtocolError as error:
            raise ExecuteError(f"{self.host.node}: {error}", hint=LOGIN_SCRIPT_HINT) from None
        if not 0 <= chunk.rank < len(self.record.layout) or chunk.at < 0:
            raise ExecuteError(
                f"{self.host.node}: it tells of a rank {chunk.rank}, which is none.",
                hint="Something else than orch writes there: the run's record is of another run.",
            )
        return chunk

    def patiently(self, tell: Tell) -> Iterator[LogLine]:
        """The same, reconnecting where the connection is lost."""
        lost: float | None = None
        while True:
            try:
                for line in self.lines():
                    if lost is not None:
                        tell(f"connected to {self.host.node} again")
                        lost = None
                    yield line
                return
            except ConnectionLost as error:
                if lost is None:
                    tell(f"{error.message} Connecting again.")
                    lost = time.monotonic()
                if time.monotonic() - lost > GIVE_UP_SECONDS:
                    raise
                time.sleep(RETRY_SECONDS)


class Located:
    """Where the ranks of a run are, as its events tell while somebody watches it."""

    def __init__(self) -> None:
        self.nodes: dict[int, str] = {}
        self.watched = False

    def watch(self, events: Iterable[Event]) -> Iterator[Event]:
        """The same events."""
        self.watched = True
        try:
            for event in events:
                if isinstance(event, Started) and event.node is not None:
                    self.nodes[event.rank] = event.node
                yield event
        finally:
            self.watched = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedLines:
    """`rank`: None for all; `located`: what is known of where it is."""

    rank: int | None
    follow: bool
    located: Located

    @property
    def options(self) -> tuple[str, ...]:
        return (*(["--follow"] if self.follow else []), *(["--rank", str(self.rank)] if self.rank is not None else []))


Miss = Callable[[Stream, ExecuteError], None]  # told of a node that keeps its lines


def log_lines(record: RunRecord, run: Run, wanted: WantedLines, *, tell: Tell) -> Iterator[LogLine]:
    """Lines rank by rank; with `follow` as they are written, each rank's in its order.

    Of a node that does not answer it gives what was brought into the run's folder. Raises
    RequestError for a rank that the run does not have, and at the end ExecuteError if a node did
    not answer.
    """
    nodes = asked_for(run, wanted.rank)
    if not (wanted.follow or record.node0.via):  # the run lives in this folder
        yield from copied(run, nodes)
        return
    silent: list[Stream] = []

    def miss(stream: Stream, error: ExecuteError) -> None:
        silent.append(stream)
        tell(error.message)

    yield from (together if wanted.follow else in_turn)(Streams(record, wanted, tell, miss))
    if silent:
        unheard = {stream.host.node for stream in silent if not stream.read}
        yield from copied(run, {number: node for number, node in nodes.items() if node in unheard})
        names = ", ".join(stream.host.node for stream in silent)
        raise ExecuteError(f"Lines may be missing: no answer from {names}.", hint="The same command asks again.")


def copied(run: Run, nodes: Mapping[int, str]) -> Iterator[LogLine]:
    """What the run's folder here has of these ranks' logs. `nodes`: rank -> node."""
    for rank, node in nodes.items():
        path = run.folder / "ranks" / f"rank-{rank}.log"
        if path.exists():
            with path.open(errors="replace", newline="\n") as lines:
                for line in lines:
                    yield LogLine(rank=rank, node=node, text=line.rstrip("\n"))


class Streams:
    """The logs of the nodes that have to be asked: of all, or, where a run that is watched here
    tells where the one rank is, of these alone."""

    def __init__(self, record: RunRecord, wanted: WantedLines, tell: Tell, miss: Miss) -> None:
        self.record = record
        self.wanted = wanted
        self.tell = tell
        self.miss = miss
        self.narrow = wanted.rank is not None and wanted.located.watched
        self.known: set[str] = set()

    def new(self) -> list[Stream]:
        """Of nodes that none has been opened of yet."""
        hosts = [host for host in self.hosts() if host.node not in self.known]
        self.known.update(host.node for host in hosts)
        options = self.wanted.options
        return [Stream(record=self.record, host=host, options=options) for host in hosts]

    def hosts(self) -> Iterable[RunNode]:
        if not self.narrow or self.wanted.rank is None:
            return self.record.nodes
        node = self.wanted.located.nodes.get(self.wanted.rank)
        return (host for host in self.record.nodes if host.node == node)

    @property
    def may_grow(self) -> bool:
        return self.narrow and self.wanted.located.watched


def in_turn(streams: Streams) -> Iterator[LogLine]:
    for stream in streams.new():
        try:
            yield from stream.lines()
        except ExecuteError as error:
            streams.miss(stream, error)


def together(streams: Streams) -> Iterator[LogLine]:
    """The lines of all streams as they come."""
    # Bounded: a terminal that is slow holds the nodes back instead of filling this memory.
    arrived: queue.Queue[LogLine | None] = queue.Queue(maxsize=10_000)

    def read(stream: Stream) -> None:
        try:
            for line in stream.patiently(streams.tell):
                arrived.put(line)
        except ExecuteError as error:
            streams.miss(stream, error)
        finally:
            arrived.put(None)

    running = 0
    while True:
        grows = streams.may_grow  # before it is looked for more: what came last is found, too
        for stream in streams.new() if arrived.empty() else ():
            threading.Thread(target=read, args=(stream,), daemon=True).start()
            running += 1
        if not (running or grows):
            return
        try:
            line = arrived.get(timeout=LOCATE_SECONDS if grows else None)
        except queue.Empty:
            continue
        if line is None:
            running -= 1
        else:
            yield line
