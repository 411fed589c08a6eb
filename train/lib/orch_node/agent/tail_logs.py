"""Print the logs of a run's ranks on this node as JSON lines: `node.py logs RUN_DIR ...`, until the run ends.

Each line is {"rank": 3, "at": 4096, "lines": [...]}; `at` is the offset after these lines in the
rank's log, so a client that lost the connection continues with `--from 3:4096`. With `--latest`, a log
begins where the last attempt of a resumed run has ended. Lines are complete;
the last one may lack its end once nobody writes any more. Until then its text is in `state`, once a
second at most.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path

from orch_node import machine
from orch_node.agent import processes
from orch_node.protocol import files, values
from orch_node.protocol.node_reports import LogChunk
from orch_node.protocol.outcome import ProcessRecord
from orch_node.tail import Tail

POLL_SECONDS = 0.1
RUN_CHECK_SECONDS = 1.0
STATE_SECONDS = 1.0  # between states of an unfinished line


class RankLog(Tail):
    """The log of one rank."""

    def __init__(self, path: Path, rank: int, offset: int) -> None:
        super().__init__(path, offset)
        self.rank = rank
        self.printed_state = ""
        self.printed_at = time.monotonic()

    def print_new(self, *, last: bool = False) -> bool:
        """Print the new lines, and return whether there were any."""
        lines = self.lines(last=last)
        is_new_state = self.state != self.printed_state and time.monotonic() - self.printed_at >= STATE_SECONDS
        if lines or is_new_state:
            print(values.render(LogChunk(self.rank, self.at, tuple(lines), self.state)))
            self.printed_state, self.printed_at = self.state, time.monotonic()
        return bool(lines)


def add_new_logs(folder: Path, rank_logs: dict[int, RankLog], options: argparse.Namespace) -> None:
    """Add the logs that have appeared since the last call."""
    starts = (start.partition(":") for start in options.starts)
    offsets = earlier_sizes(folder.parent) if options.latest else {}
    offsets |= {int(rank): int(offset) for rank, _, offset in starts}
    for path in folder.glob("rank-*.log"):
        rank = int(re.sub(r"\D", "", path.stem))
        if rank not in rank_logs and (not options.rank or rank in options.rank):
            rank_logs[rank] = RankLog(path, rank, offsets.get(rank, 0))


def earlier_sizes(run_dir: Path) -> dict[int, int]:
    """Return how long the log of each rank was when the last attempt of a resumed run had ended."""
    try:
        return {int(rank): int(size) for rank, size in json.loads((run_dir / files.EARLIER_LOGS).read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def print_logs(run_dir: Path, options: argparse.Namespace) -> None:
    """Print the logs until the run ends."""
    rank_logs: dict[int, RankLog] = {}
    living: list[ProcessRecord] = []
    checked_at = 0.0
    follow = True
    while follow:
        if time.monotonic() - checked_at > RUN_CHECK_SECONDS:
            if not any(machine.is_alive(*process.key) for process in living):  # a scan of all processes takes long
                living = processes.run_processes(str(run_dir))
            follow = bool(living)
            checked_at = time.monotonic()
            add_new_logs(run_dir / files.RANKS, rank_logs, options)
        follow = follow and not (run_dir / files.OUTCOME).exists()
        if not any([rank_logs[rank].print_new() for rank in sorted(rank_logs)]):
            sys.stdout.flush()
            time.sleep(POLL_SECONDS)
    add_new_logs(run_dir / files.RANKS, rank_logs, options)
    for rank in sorted(rank_logs):
        while rank_logs[rank].print_new():
            pass
        rank_logs[rank].print_new(last=True)


def main(argv: list[str]) -> None:
    """Print the logs that the arguments select."""
    parser = argparse.ArgumentParser(prog="node.py logs")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--latest", action="store_true")
    parser.add_argument("--rank", type=int, nargs="*", default=[])
    parser.add_argument("--from", dest="starts", nargs="*", default=[], metavar="RANK:BYTE")
    try:
        options = parser.parse_args(argv)
        if not options.run_dir.is_dir():
            raise SystemExit(f"{options.run_dir} does not exist")
        print_logs(options.run_dir, options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe
        sys.stderr.close()
