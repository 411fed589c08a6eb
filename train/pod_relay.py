"""A pod's standard output: the run's events, its ranks' logs and figures, as they come."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path

LONGEST = 8000  # a container runtime breaks lines of 16 KiB
CHUNK = 1 << 18
LOCK = threading.Lock()
NO_RANK = -1


def emit(data: bytes) -> None:
    with LOCK:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def say(event: str, **fields: object) -> None:
    """An event of the pod's own."""
    record = {"event": event, "rank": NO_RANK, "time": round(time.time(), 3), **fields}
    emit(json.dumps(record).encode() + b"\n")


class Tail:
    """A file that grows, line by line."""

    def __init__(self, path: Path, at: int) -> None:
        self.path = path
        self.at = at

    def lines(self, *, last: bool = False) -> list[str]:
        """What is new; with `last` also a line without an end."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.at)
                chunk = file.read(CHUNK)
        except OSError:
            return []
        end = chunk.rfind(b"\n") + 1
        if not end and (last or len(chunk) == CHUNK):
            end = len(chunk)
        self.at += end
        return chunk[:end].decode(errors="replace").splitlines()


class Relay:
    """`ranks`: those whose files are this pod's; None for all of the run, with the supervisor's."""

    def __init__(self, run_dir: Path, ranks: Collection[int] | None) -> None:
        self.run_dir = run_dir
        self.ranks = ranks
        self.tails: dict[Path, Tail] = {}
        # A pod that starts again has told what is there already.
        self.before = {path: path.stat().st_size for path in run_dir.glob("ranks/rank-*")}

    def write(self, line: bytes) -> None:
        emit(line if line.endswith(b"\n") else line + b"\n")

    def pump(self, *, last: bool = False) -> bool:
        """Tell what is new; -> whether there was anything."""
        self.find()
        found = False
        for path in sorted(self.tails):
            for line in self.tails[path].lines(last=last):
                found = True
                self.tell(path, line)
        return found

    def finish(self) -> None:
        while self.pump():
            pass
        self.pump(last=True)
        outcome = self.run_dir / "outcome.json"
        if self.ranks is None and outcome.exists():
            say("outcome", outcome=json.loads(outcome.read_text()))

    def find(self) -> None:
        paths = list(self.run_dir.glob("ranks/rank-*"))
        if self.ranks is None:
            paths += [self.run_dir / "events.jsonl", self.run_dir / "launcher.log"]
        for path in paths:
            if path not in self.tails and self.is_ours(path):
                self.tails[path] = Tail(path, self.before.get(path, 0))

    def is_ours(self, path: Path) -> bool:
        return self.ranks is None or rank_of(path) in self.ranks

    def tell(self, path: Path, line: str) -> None:
        rank = rank_of(path)
        if rank is None:
            emit(f"{line}\n".encode())
        elif path.suffix == ".jsonl":
            emit(json.dumps({"metrics": rank, "line": line}).encode() + b"\n")
        else:
            for at in range(0, max(len(line), 1), LONGEST):
                emit(f"[{rank}] {line[at : at + LONGEST]}\n".encode(errors="replace"))


def rank_of(path: Path) -> int | None:
    match = re.match(r"rank-(\d+)\.", path.name)
    return int(match.group(1)) if match else None
