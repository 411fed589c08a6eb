"""Write the events of the run and the logs and metrics of its ranks to standard output."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from orch_node import streams
from orch_node.protocol import events, files
from orch_node.protocol.events import Event
from orch_node.tail import Tail

LONGEST = 8000  # a container runtime breaks lines of 16 KiB
STATE_SECONDS = 30.0  # between two states of an unfinished line, as of a progress bar
LOCK = threading.Lock()


def emit(data: bytes) -> None:
    """Write bytes to standard output; calls of several threads do not mix."""
    with LOCK:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def emit_event(event: Event) -> None:
    """Write an event of the pod itself, with the present time."""
    emit(events.render(replace(event, time=round(time.time(), 3))))


class Relay:
    """A relay of new lines in the files of a run to standard output.

    Attributes:
        run_dir: the folder of the run.
        ranks: the ranks of this pod.
        tails: a reader for each file.
        printed_at: when a line of each file was last printed.
        before: the size of each file at the start.
    """

    def __init__(self, run_dir: Path, ranks: Collection[int]) -> None:
        self.run_dir = run_dir
        self.ranks = ranks
        self.tails: dict[Path, Tail] = {}
        self.printed_at: dict[Path, float] = {}
        # A restarted pod skips the lines that it has already relayed.
        self.before = {path: path.stat().st_size for path in run_dir.glob("ranks/rank-*")}

    def pump(self, *, last: bool = False) -> bool:
        """Relay new lines, also of files that have appeared, and return whether there were any."""
        for path in self.run_dir.glob("ranks/rank-*"):
            if path not in self.tails and path.suffix != ".times" and files.rank_of(path.name) in self.ranks:
                self.tails[path] = Tail(path, self.before.get(path, 0))
        has_new_lines = False
        for path in sorted(self.tails):
            has_begun = bool(self.tails[path].state)  # the rest of a line that begins now may be on its way
            lines = self.tails[path].lines(last=last)
            has_new_lines = has_new_lines or bool(lines)
            for line in lines or (self.due_state(path) if has_begun else []):
                self.printed_at[path] = time.monotonic()
                self.write_line(path, line)
        return has_new_lines

    def due_state(self, path: Path) -> list[str]:
        """Return the state of a log's unfinished line if nothing was printed for 30 seconds."""
        now, state = time.monotonic(), self.tails[path].state
        due = now - self.printed_at.setdefault(path, now) >= STATE_SECONDS
        return [state] if due and state and path.suffix == ".log" else []

    def write_line(self, path: Path, line: str) -> None:
        """Write a line of a file in the form for its type."""
        rank = files.rank_of(path.name)
        if path.suffix == ".jsonl":
            emit(json.dumps({"metrics": rank, "line": line}).encode() + b"\n")
        else:
            stream = streams.STDOUT
            for position in range(0, max(len(line), 1), LONGEST):
                piece = streams.mark(line[position : position + LONGEST], stream)
                stream = streams.split(piece)[-1][1]
                emit(f"[{rank}] {piece}\n".encode(errors="replace"))
