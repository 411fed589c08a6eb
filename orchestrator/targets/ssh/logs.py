"""`orch logs`: the lines of a run's ranks, from all its nodes, whole and in order."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from orch_node.protocol import logs
from orch_node.protocol.logs import LogChunk
from orch_node.protocol.record import RunNode, RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.runs.logs import LogLine, asked_for
from orchestrator.runs.store import Run
from orchestrator.targets.connections.mirror import GIVE_UP_SECONDS, RETRY_SECONDS
from orchestrator.targets.interface import Tell
from orchestrator.targets.ssh.nodes import connection_to, node_program


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
                self.read[chunk.rank] = chunk.at
        finally:
            connection.close()

    def chunk_of(self, line: str) -> LogChunk:
        """Raises ExecuteError for what is no part of a log of this run."""
        try:
            chunk = logs.parse(line)
        except ProtocolError as error:
            raise ExecuteError(f"{self.host.node}: {error}") from None
        if not 0 <= chunk.rank < len(self.record.layout) or chunk.at < 0:
            raise ExecuteError(f"{self.host.node}: it tells of a rank {chunk.rank}, which is none.")
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


Miss = Callable[[Stream, ExecuteError], None]  # told of a node that keeps its lines


def log_lines(
    record: RunRecord, run: Run, *, rank: int | None, follow: bool, tell: Tell
) -> Iterator[LogLine]:
    """Lines rank by rank; with `follow` as they are written, each rank's in its order.

    Of a node that does not answer it gives what was brought into the run's folder. Raises
    RequestError for a rank that the run does not have, and at the end ExecuteError if a node did
    not answer.
    """
    nodes = asked_for(run, rank)
    if not (follow or record.node0.via):  # the run lives in this folder
        yield from copied(run, nodes)
        return
    options = (
        *(["--follow"] if follow else []),
        *(["--rank", str(rank)] if rank is not None else []),
    )
    streams = [Stream(record=record, host=host, options=options) for host in record.nodes]
    silent: list[Stream] = []

    def miss(stream: Stream, error: ExecuteError) -> None:
        silent.append(stream)
        tell(error.message)

    yield from (together(streams, tell, miss) if follow else in_turn(streams, miss))
    if silent:
        unheard = {stream.host.node for stream in silent if not stream.read}
        yield from copied(run, {number: node for number, node in nodes.items() if node in unheard})
        names = ", ".join(stream.host.node for stream in silent)
        raise ExecuteError(
            f"Lines may be missing: no answer from {names}.", hint="The same command asks again."
        )


def copied(run: Run, nodes: Mapping[int, str]) -> Iterator[LogLine]:
    """What the run's folder here has of these ranks' logs. `nodes`: rank -> node."""
    for rank, node in nodes.items():
        path = run.folder / "ranks" / f"rank-{rank}.log"
        if path.exists():
            with path.open(errors="replace", newline="\n") as lines:
                for line in lines:
                    yield LogLine(rank=rank, node=node, text=line.rstrip("\n"))


def in_turn(streams: list[Stream], miss: Miss) -> Iterator[LogLine]:
    for stream in streams:
        try:
            yield from stream.lines()
        except ExecuteError as error:
            miss(stream, error)


def together(streams: list[Stream], tell: Tell, miss: Miss) -> Iterator[LogLine]:
    """The lines of all streams as they come."""
    # Bounded: a terminal that is slow holds the nodes back instead of filling this memory.
    arrived: queue.Queue[LogLine | None] = queue.Queue(maxsize=10_000)

    def read(stream: Stream) -> None:
        try:
            for line in stream.patiently(tell):
                arrived.put(line)
        except ExecuteError as error:
            miss(stream, error)
        finally:
            arrived.put(None)

    for stream in streams:
        threading.Thread(target=read, args=(stream,), daemon=True).start()
    open_streams = len(streams)
    while open_streams:
        line = arrived.get()
        if line is None:
            open_streams -= 1
        else:
            yield line
