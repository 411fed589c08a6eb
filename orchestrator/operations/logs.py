"""`orch logs`: the lines of a run's ranks, from all its nodes, whole and in order."""

from __future__ import annotations

import json
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import runs
from orchestrator.card import Whereabouts
from orchestrator.errors import ConnectionLost, ExecuteError, RequestError
from orchestrator.mirror import GIVE_UP_SECONDS, RETRY_SECONDS
from orchestrator.operations.reach import backend_for
from orchestrator.plan import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a rank's log."""

    rank: int
    node: str
    text: str


@dataclass(slots=True, kw_only=True)
class Stream:
    """The logs of one node. `read`: rank -> the byte that its log was read to."""

    where: Whereabouts
    target: Target
    options: tuple[str, ...]
    read: dict[int, int] = field(default_factory=dict)

    def lines(self) -> Iterator[Line]:
        """Until the node has no more. Raises ConnectionLost; called again it goes on from there."""
        starts = [f"{rank}:{at}" for rank, at in self.read.items()]
        command = self.where.program("tail.py", self.where.run_dir, *self.options)
        backend = backend_for(self.target)
        try:
            for record in backend.stream((*command, *(["--from", *starts] if starts else []))):
                chunk = json.loads(record)
                for text in chunk["lines"]:
                    yield Line(rank=chunk["rank"], node=self.target.node, text=text)
                self.read[chunk["rank"]] = chunk["at"]
        finally:
            backend.close()

    def patiently(self, tell: Callable[[str], None]) -> Iterator[Line]:
        """The same, reconnecting where the connection is lost."""
        lost: float | None = None
        while True:
            try:
                for line in self.lines():
                    if lost is not None:
                        tell(f"connected to {self.target.node} again")
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


def compiled(pattern: str | None) -> re.Pattern[str]:
    try:
        return re.compile(pattern or "")
    except re.error as error:
        raise RequestError(f"--grep {pattern}: {error}.") from None


def log_lines(
    where: Whereabouts,
    folder: Path,
    *,
    rank: int | None,
    follow: bool,
    tell: Callable[[str], None],
) -> Iterator[Line]:
    """Lines rank by rank; with `follow` as they are written, each rank's in its order.

    Of a node that does not answer it gives what was brought into `folder`. Raises RequestError for
    a rank that the run does not have, and at the end ExecuteError if a node did not answer.
    """
    run = runs.load(folder)
    nodes = asked_for(run, rank)
    if not (follow or where.node0.via):  # the run lives in this folder
        yield from copied(run, nodes)
        return
    options = (
        *(["--follow"] if follow else []),
        *(["--rank", str(rank)] if rank is not None else []),
    )
    streams = [Stream(where=where, target=target, options=options) for target in where.nodes]
    silent: list[Stream] = []

    def miss(stream: Stream, error: ExecuteError) -> None:
        silent.append(stream)
        tell(error.message)

    yield from (together(streams, tell, miss) if follow else in_turn(streams, miss))
    if silent:
        unheard = {stream.target.node for stream in silent if not stream.read}
        yield from copied(run, {number: node for number, node in nodes.items() if node in unheard})
        names = ", ".join(stream.target.node for stream in silent)
        raise ExecuteError(f"Lines may be missing: no answer from {names}.")


def asked_for(run: runs.Run, rank: int | None) -> dict[int, str]:
    """Rank -> node. Raises RequestError for a rank that the run does not have."""
    nodes = {place["rank"]: place["node"] for place in run.plan["layout"]}
    if rank is not None and rank not in nodes:
        raise RequestError(f"Run {run.id} has ranks 0 to {max(nodes)}.")
    return nodes if rank is None else {rank: nodes[rank]}


def copied(run: runs.Run, nodes: Mapping[int, str]) -> Iterator[Line]:
    """What the run's folder here has of these ranks' logs. `nodes`: rank -> node."""
    for rank, node in nodes.items():
        path = run.folder / "ranks" / f"rank-{rank}.log"
        if path.exists():
            with path.open(errors="replace", newline="\n") as lines:
                for line in lines:
                    yield Line(rank=rank, node=node, text=line.rstrip("\n"))


def in_turn(streams: list[Stream], miss: Miss) -> Iterator[Line]:
    for stream in streams:
        try:
            yield from stream.lines()
        except ExecuteError as error:
            miss(stream, error)


def together(streams: list[Stream], tell: Callable[[str], None], miss: Miss) -> Iterator[Line]:
    """The lines of all streams as they come."""
    # Bounded: a terminal that is slow holds the nodes back instead of filling this memory.
    arrived: queue.Queue[Line | None] = queue.Queue(maxsize=10_000)

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
