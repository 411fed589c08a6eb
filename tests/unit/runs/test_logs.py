"""Read local copies of logs of ranks and of events, in blocks and from the end."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
import tracemalloc
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node import tail
from orch_node.protocol.events import Progress, Result
from orch_node.streams import STDERR, STDOUT, LogWriter

from orchestrator.runs import events, store
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


def make_log(path: Path, lines: int, ranks: int = 1) -> None:
    """Write a log with progress of each rank and a result at its end."""
    with path.open("w") as file:
        file.write(json.dumps({"event": "started", "rank": 0, "time": 0, "pid": 1}) + "\n")
        for step in range(lines):
            event = {"event": "progress", "rank": step % ranks, "time": step, "phase": "train", "step": step}
            file.write(json.dumps(event) + "\n")
        file.write(json.dumps({"event": "result", "rank": 0, "time": lines, "loss": 1.0}) + "\n")
        file.write('{"event": "progress", "rank": 0, "ti')


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the block size, so that a log of about 100 KB is read like a long one."""
    monkeypatch.setattr(tail, "NEAR_END_BYTES", 1 << 16)
    monkeypatch.setattr(events, "WHOLE_BYTES", 1 << 14)


def test_newest_event_is_found_without_reading_the_log(tmp_path: Path, small_blocks: None) -> None:
    path = tmp_path / "events.jsonl"
    make_log(path, 30_000, ranks=2)
    tracemalloc.start()
    progress = tail.newest_event(path, Progress)
    result = tail.newest_event(path, Result)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert progress.step == 29_998, "rank 0 represents all ranks"
    assert result is not None
    assert peak < path.stat().st_size // 10


def test_long_log_keeps_all_events_and_some_progress_of_each_rank(tmp_path: Path, small_blocks: None) -> None:
    path = tmp_path / "events.jsonl"
    make_log(path, 10_000, ranks=4)
    stored_events = events.stored(path, ranks=4)
    steps = [event.step for event in stored_events if isinstance(event, Progress)]
    assert len(steps) < 1000
    assert steps == sorted(steps)
    for rank in range(4):
        steps_of_rank = [event.step for event in stored_events if isinstance(event, Progress) and event.rank == rank]
        assert steps_of_rank[-1] == 9996 + rank
        assert len(steps_of_rank) > 20
    assert [type(event).__name__ for event in stored_events if not isinstance(event, Progress)] == ["Started", "Result"]
    make_log(path, 100)
    assert len(events.stored(path, ranks=1)) == 102, "a short log is complete"


def test_ranks_of_a_larger_attempt_before_a_resume_are_known() -> None:
    begun, started = ('{"event": "launched", "rank": -1, "ranks": 2}', '{"event": "started", "rank": %d, "pid": 1}')
    read_events = events.events_in([begun.encode(), *((started % rank).encode() for rank in (1, 2))], ranks=1)
    assert [type(event).__name__ for event in read_events] == ["Launched", "Started", "UnreadableEvent"]


@given(st.lists(st.sampled_from([b"", b"a", b"bb" * 9, b"\n", b"\n\n"])))
def test_blocks_of_lines_add_up_to_the_log_in_both_directions(tmp_path: Path, parts: list[bytes]) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(parts))
    expected = b"".join(parts).split(b"\n")[:-1]
    lines: list[bytes] = []
    assert tail.lines_backwards(io.BytesIO(path.read_bytes()))[::-1] == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "BLOCK_BYTES", 4)
        while whole_lines := events.whole_lines(path, sum(len(line) + 1 for line in lines)):
            lines += whole_lines
    assert lines == expected
