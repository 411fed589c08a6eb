"""Stack traces in a log and the lines of that log on a screen."""

from __future__ import annotations

import subprocess
import sys

from orchestrator.runs.logs import LogLine
from orchestrator.runs.stack_traces import without

DUMPS = """
import faulthandler, sys, threading
print("step 1", file=sys.stderr, flush=True)
waits = threading.Event()
threading.Thread(target=waits.wait, daemon=True).start()
def deep(left):
    deep(left - 1) if left else faulthandler.dump_traceback(all_threads=True)
deep(150)
print("  step 2\\n\\nstep 3", file=sys.stderr)
"""


def lines_of(rank: int, text: str) -> list[LogLine]:
    return [LogLine(rank=rank, node="node0", text=line) for line in text.splitlines()]


def test_a_screen_has_what_the_script_printed_alone() -> None:
    run = [sys.executable, "-c", DUMPS]
    text = subprocess.run(run, capture_output=True, text=True, check=True).stderr
    assert text.count("(most recent call first):") == 2
    assert "\n  ...\n" in text
    shown = ["step 1", "  step 2", "", "step 3"]
    assert [line.text for line in without(lines_of(0, text))] == shown


def test_ranks_between_each_other() -> None:
    trace = 'Thread 0x00007f0 (most recent call first):\n  File "a.py", line 1 in <module>'
    first, frame = lines_of(0, trace)
    (rank1_line,) = lines_of(1, '  File "mine.txt", line 3 in it')
    (rank0_line,) = lines_of(0, "goes on")
    assert list(without([first, rank1_line, frame, rank0_line])) == [rank1_line, rank0_line]
