"""The lines of ranks in local copies of their logs."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

from orch_node.streams import STDERR, STDOUT, LogWriter

from orchestrator.runs import store
from orchestrator.runs.logs import LogLine, copied_lines, without_stack_traces
from tests.support.recorded import make_run


def test_lines_of_ranks_are_merged_in_the_order_of_time(tmp_path: Path) -> None:
    run = store.load(make_run(tmp_path, ranks=3, nodes=1))
    writers = [LogWriter(run.folder / f"ranks/rank-{rank}.log", print) for rank in range(2)]
    written = (
        (0, "first\n", STDOUT, 10.0),
        (1, "second, ", STDERR, 11.0),  # a line has the time of its end
        (0, "third\nfourth\n", STDERR, 12.0),
        (1, "which ends late\n", STDERR, 13.0),
        (0, "last", STDOUT, 14.0),
    )
    for rank, text, stream, time in written:
        with patch("orch_node.streams.time.time", return_value=time):
            writers[rank].write(text.encode(), stream)
    (run.folder / "ranks/rank-2.log").write_text("without times\n")
    lines = list(copied_lines(run, dict.fromkeys(range(3), "node0"), {}))
    assert [(line.rank, line.text, line.stream, line.time) for line in lines] == [
        (0, "first", STDOUT, 10.0),
        (0, "third", STDERR, 12.0),
        (0, "fourth", STDERR, 12.0),
        (1, "second, which ends late", STDERR, 13.0),
        (0, "last", STDOUT, 14.0),
        (2, "without times", STDOUT, math.inf),
    ]
    later = copied_lines(run, {0: "node0"}, {run.folder / "ranks/rank-0.log": len("first\n")})
    assert [line.text for line in later] == ["third", "fourth", "last"]
    (run.folder / "ranks/rank-0.times").write_text("damaged\n0 1e3\n0 nan\n")
    assert {line.time for line in copied_lines(run, {0: "node0"}, {})} == {math.inf}


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


def test_only_the_output_of_the_script_remains() -> None:
    text = subprocess.run([sys.executable, "-c", DUMPS], capture_output=True, text=True, check=True).stderr
    assert text.count("(most recent call first):") == 2
    assert "\n  ...\n" in text
    lines = [LogLine(rank=0, node="node0", text=line) for line in text.splitlines()]
    other_line = LogLine(rank=1, node="node0", text='  File "mine.txt", line 3 in it')
    remaining_lines = list(without_stack_traces([*lines[:5], other_line, *lines[5:]]))
    assert remaining_lines.pop(1) == other_line
    assert [line.text for line in remaining_lines] == ["step 1", "  step 2", "", "step 3"]
