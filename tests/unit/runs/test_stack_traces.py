"""Stack traces are removed from the lines of a log for the screen."""

from __future__ import annotations

import subprocess
import sys

from orchestrator.runs.logs import LogLine
from orchestrator.runs.stack_traces import without

DUMPS = """
import faulthandler, sys, threading
print("step 1", file=sys.stderr, flush=True)
event = threading.Event()
threading.Thread(target=event.wait, daemon=True).start()
def recurse(depth):
    recurse(depth - 1) if depth else faulthandler.dump_traceback(all_threads=True)
recurse(150)
print("  step 2\\n\\nstep 3", file=sys.stderr)
"""


def make_lines(rank: int, text: str) -> list[LogLine]:
    return [LogLine(rank=rank, node="node0", text=line) for line in text.splitlines()]


def test_only_the_output_of_the_script_remains() -> None:
    text = subprocess.run([sys.executable, "-c", DUMPS], capture_output=True, text=True, check=True).stderr
    assert text.count("(most recent call first):") == 2
    assert "\n  ...\n" in text
    assert [line.text for line in without(make_lines(0, text))] == ["step 1", "  step 2", "", "step 3"]


def test_lines_of_another_rank_between_those_of_a_trace_remain() -> None:
    trace = 'Thread 0x00007f0 (most recent call first):\n  File "a.py", line 1 in <module>'
    first, frame = make_lines(0, trace)
    (rank1_line,) = make_lines(1, '  File "mine.txt", line 3 in it')
    (rank0_line,) = make_lines(0, "continues")
    assert list(without([first, rank1_line, frame, rank0_line])) == [rank1_line, rank0_line]
