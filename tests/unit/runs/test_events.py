"""Read event logs of hundreds of MB in blocks, from the end, and with a part of their progress."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node import tail
from orch_node.protocol.events import Progress, Result

from orchestrator.runs import events
from orchestrator.runs.outcome import run_output
from orchestrator.runs.store import Run


def make_log(path: Path, lines: int) -> None:
    """Write a log with a result at its end."""
    with path.open("w") as file:
        file.write(json.dumps({"event": "started", "rank": 0, "time": 0, "pid": 1}) + "\n")
        for step in range(lines):
            event = {"event": "progress", "rank": 0, "time": step, "phase": "train", "step": step}
            file.write(json.dumps(event) + "\n")
        file.write(json.dumps({"event": "result", "rank": 0, "time": lines, "loss": 1.0}) + "\n")
        file.write('{"event": "progress", "rank": 0, "ti')


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the block size, so that a log of about 100 KB is read like a long one."""
    monkeypatch.setattr(tail, "BLOCK_BYTES", 1 << 12)
    monkeypatch.setattr(tail, "NEAR_END_BYTES", 1 << 16)
    monkeypatch.setattr(events, "WHOLE_BYTES", 1 << 14)


def test_newest_event_is_found_without_reading_the_log(tmp_path: Path, small_blocks: None) -> None:
    path = tmp_path / "events.jsonl"
    make_log(path, 100_000)
    tracemalloc.start()
    progress = events.newest(path, Progress, ranks=1)
    result = events.newest(path, Result, ranks=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert progress.step == 99_999
    assert result is not None
    assert peak < path.stat().st_size // 10


def test_long_log_keeps_all_events_except_progress(tmp_path: Path, small_blocks: None) -> None:
    path = tmp_path / "events.jsonl"
    make_log(path, 10_000)
    stored_events = events.stored(path, ranks=1)
    steps = [event.step for event in stored_events if isinstance(event, Progress)]
    assert len(steps) < 1000
    assert steps == sorted(steps)
    assert steps[-1] == 9_999
    assert [type(event).__name__ for event in stored_events if not isinstance(event, Progress)] == ["Started", "Result"]
    make_log(path, 100)
    assert len(events.stored(path, ranks=1)) == 102, "a short log is complete"


def test_ranks_of_a_larger_attempt_before_a_resume_are_known() -> None:
    begun, other = ('{"event": "launched", "rank": -1, "ranks": 2}', '{"event": "started", "rank": %d, "pid": 1}')
    found = events.events_in([begun.encode(), *((other % rank).encode() for rank in (1, 2))], ranks=1)
    assert [type(event).__name__ for event in found] == ["Launched", "Started", "UnreadableEvent"]


PARTS = st.lists(st.sampled_from([b"", b"a", b"bb" * 9, b"\n", b"\n\n"]))


@given(PARTS, st.integers(1, 9))
def test_lines_are_read_backwards(parts: list[bytes], block: int) -> None:
    content = b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail, "BLOCK_BYTES", block)
        backwards = list(tail.lines_backwards(io.BytesIO(content)))
    assert backwards[::-1] == content.split(b"\n")[:-1]


@given(PARTS)
def test_blocks_of_lines_add_up_to_the_log(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    content = b"".join(parts)
    path.write_bytes(content)
    lines: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "BLOCK_BYTES", 4)
        offset = 0
        while block := events.whole_lines(path, offset):
            lines += block
            offset += sum(len(line) + 1 for line in block)
    assert lines == content.split(b"\n")[:-1]


def test_last_text_is_the_end_of_a_file(tmp_path: Path) -> None:
    for content in (b"", b"short\n", "\u00e9".encode() * 3000 + b"\r\nend\n", b"\xff" * 9000):
        path = tmp_path / "launcher.log"
        path.write_bytes(content)
        assert tail.last_text(path, 2000) == path.read_text(errors="replace")[-2000:]
        assert tail.last_text(tmp_path / "missing", 2000) == ""


def test_only_the_end_of_a_long_launcher_log_is_read(tmp_path: Path) -> None:
    run = SimpleNamespace(folder=tmp_path, outcome=None)
    with (tmp_path / "launcher.log").open("wb") as log:
        log.truncate(1 << 25)
        log.seek(0, io.SEEK_END)
        log.write(b"\nno space left\n")
    tracemalloc.start()
    text = run_output(cast(Run, run), None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert text.endswith("\nno space left\n")
    assert peak < 1 << 24


def test_long_log_keeps_progress_of_each_rank(tmp_path: Path, small_blocks: None) -> None:
    path, ranks = tmp_path / "events.jsonl", 4
    with path.open("w") as file:
        for number in range(10_000):
            file.write(json.dumps({"event": "progress", "rank": number % ranks, "time": number, "step": number}) + "\n")
    steps_by_rank: dict[int, list[float]] = {}
    for event in events.stored(path, ranks=ranks):
        assert isinstance(event, Progress)
        steps_by_rank.setdefault(event.rank, []).append(event.step or 0)
    assert {rank: steps[-1] for rank, steps in steps_by_rank.items()} == {0: 9996, 1: 9997, 2: 9998, 3: 9999}
    assert min(map(len, steps_by_rank.values())) > 20
