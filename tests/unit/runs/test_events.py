"""Read event logs of hundreds of MB in blocks, from the end, and with a part of their progress."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node import tail
from orch_node.protocol.events import Progress, Result

from orchestrator.runs import events


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
