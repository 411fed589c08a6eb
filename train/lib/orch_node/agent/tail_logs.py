"""The logs of a run's ranks on this node, as JSON lines: `node.py logs RUN_DIR [--follow] ...`.

Each line: {"rank": 3, "at": 4096, "lines": [...]}; `at` is the byte after them in the rank's log,
so whoever lost the connection goes on with `--from 3:4096`. Lines are whole; a last line without an
end is given when nobody writes any more. Until then its `state` is given, once a second at most.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from orch_node.agent import processes
from orch_node.protocol import files, logs
from orch_node.protocol.logs import LogChunk
from orch_node.tail import Tail

POLL_SECONDS = 0.1
LIVES_SECONDS = 1.0  # between looks at whether the run lives
STATE_SECONDS = 1.0  # between states of a line that has not ended


class Log(Tail):
    """One rank's log."""

    def __init__(self, path: Path, rank: int, at: int) -> None:
        super().__init__(path, at)
        self.rank = rank
        self.printed_state = ""
        self.printed_at = time.monotonic()

    def give(self, *, last: bool = False) -> bool:
        """Print the lines that are new; -> whether there were any."""
        lines = self.lines(last=last)
        if lines or self.has_new_state():
            print(logs.render(LogChunk(self.rank, self.at, tuple(lines), self.state)))
            self.printed_state, self.printed_at = self.state, time.monotonic()
        return bool(lines)

    def has_new_state(self) -> bool:
        """Return whether the unfinished line has changed, and was not printed within a second."""
        changed = self.state != self.printed_state
        return changed and time.monotonic() - self.printed_at >= STATE_SECONDS


def find_logs(folder: Path, found: dict[int, Log], asked: argparse.Namespace) -> None:
    """Add the logs that have appeared."""
    pairs = (pair.partition(":") for pair in asked.starts)
    starts = {int(rank): int(at) for rank, _, at in pairs}
    for path in folder.glob("rank-*.log"):
        rank = int(re.sub(r"\D", "", path.stem))
        if rank not in found and (not asked.rank or rank in asked.rank):
            found[rank] = Log(path, rank, starts.get(rank, 0))


def give_all(found: dict[int, Log], *, last: bool = False) -> bool:
    """Each log's next chunk, in the order of their ranks; -> whether there was any."""
    return any([found[rank].give(last=last) for rank in sorted(found)])


class Life:
    """Whether a run lives on this node. All processes are gone through only when none of those that
    were found the last time is left."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.found: list[processes.Process] = []

    def goes_on(self) -> bool:
        if not any(processes.alive(one.pid, one.start) for one in self.found):
            self.found = processes.of_run(str(self.run_dir))
        return bool(self.found)


def tail(run_dir: Path, asked: argparse.Namespace) -> None:
    found: dict[int, Log] = {}
    life = Life(run_dir)
    looked = 0.0
    lives = asked.follow
    while lives:
        if time.monotonic() - looked > LIVES_SECONDS:
            lives = life.goes_on()
            looked = time.monotonic()
            find_logs(run_dir / files.RANKS, found, asked)
        lives = lives and not (run_dir / files.OUTCOME).exists()
        if not give_all(found):
            sys.stdout.flush()
            time.sleep(POLL_SECONDS)
    find_logs(run_dir / files.RANKS, found, asked)
    for rank in sorted(found):
        while found[rank].give():
            pass
        found[rank].give(last=True)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="node.py logs")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--follow", action="store_true")
    parser.add_argument("--rank", type=int, nargs="*", default=[])
    parser.add_argument("--from", dest="starts", nargs="*", default=[], metavar="RANK:BYTE")
    try:
        asked = parser.parse_args(argv)
        if not asked.run_dir.is_dir():
            raise SystemExit(f"{asked.run_dir} is not there")
        tail(asked.run_dir, asked)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read this has gone
        sys.stderr.close()
