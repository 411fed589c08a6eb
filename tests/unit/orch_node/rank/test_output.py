"""Why a rank has ended: its traceback, the end of its log, and the kernel's counter of processes out of memory."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orch_node.events import encode
from orch_node.rank import hooks, output
from orch_node.rank.main import script_traceback
from orch_node.rank.output import TAIL_BYTES, log_tail
from orch_node.streams import MARKS, STDERR

from orchestrator.runs.tracebacks import parse_last

FRAME = '  File "/home/user/orch/train/recipes/bert_qa/run_qa.py", line 1 in main\n'


def make_log(folder: Path, text: str) -> Path:
    path = folder / "rank-0.log"
    path.write_text(text)
    return path


def test_log_tail_omits_what_orch_itself_printed_and_warnings_of_torch(tmp_path: Path) -> None:
    warning = "[W1127 00:59:18.033539011 socket.cpp:207] [c10d] The hostname cannot be retrieved. err=-3"
    text = f"{warning}\none\norch: the script requests a process group\n\nSee 'docker run --help'.\n"
    assert log_tail(make_log(tmp_path, text)) == "one"


def test_log_tail_prefers_the_cause_to_stack_traces(tmp_path: Path) -> None:
    start = "early\n" * 1000 + "free(): invalid pointer\n"
    text = start + "Fatal Python error: Aborted\n\n" + "Thread 1:\n" + FRAME * 400
    result = log_tail(make_log(tmp_path, text))
    assert "free(): invalid pointer\nFatal Python error: Aborted" in result
    assert FRAME.strip() in result
    assert len(result) <= TAIL_BYTES


def test_log_tail_has_the_thread_that_a_signal_ended(tmp_path: Path) -> None:
    for mark in ("", MARKS[STDERR]):
        threads = ("\nThread 0x1 (most recent call first):\n" + FRAME * 9) * 20
        current = '\nCurrent thread 0x2 (most recent call first):\n  File "/home/me/segv.py", line 3 in main\n'
        errors = f"Fatal Python error: Segmentation fault\n{threads}{current}{FRAME * 99}"
        result = log_tail(make_log(tmp_path, "step 1\n" + "".join(mark + line for line in errors.splitlines(True))))
        assert result.startswith("step 1\nFatal Python error: Segmentation fault\n\nCurrent thread")
        assert "segv.py" in result
        assert len(result) <= TAIL_BYTES


@given(content=st.binary() | st.binary().map(lambda data: b"Fatal Python error: " + data))
def test_log_tail_is_short_text_of_any_content(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    path.write_bytes(content)
    result = log_tail(path)
    assert len(result) <= TAIL_BYTES
    result.encode()


def test_oom_kill_is_found_in_the_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom 0\noom_kill 0\n")
    monkeypatch.setattr(output, "VMSTAT", events)
    count = output.oom_kill_count()
    assert output.oom_evidence(0, count) is None
    events.write_text("oom 1\noom_kill 1\n")
    assert output.oom_evidence(0, count) == f"oom_kill in {events} rose from 0 to 1"


FRAMES = "".join(f"\nframe #{index}: <unknown function> + 0x1 (0x7f in {'/lib' * 30}.so)" for index in range(40))
LOST = "ccl: rank 1 has left"
MISSING = "Error(s) in loading state_dict for Net:"
SIZES = "\n\tsize mismatch for layer.weight: copying a param with shape torch.Size([2, 3])" * 200


def step(depth: int, message: str) -> None:
    if depth:
        step(depth - 1, message)
    raise RuntimeError(message)


def test_traceback_in_an_event_keeps_the_exception_and_its_frames() -> None:
    for message, first, last in (
        (f"{LOST}\nException raised from error at x.cpp:1 (most recent call first):{FRAMES}", LOST, LOST),
        (MISSING + SIZES, MISSING, SIZES.splitlines()[-1]),  # long-message
    ):
        with pytest.raises(RuntimeError) as exc_info:
            step(50, message)
        line = encode("exception", {"text": script_traceback(exc_info.value, is_short=True)})
        traceback = parse_last(json.loads(line)["text"])
        assert traceback.frames[-1].function == "step"
        assert traceback.message[0] == f"RuntimeError: {first}"
        assert traceback.message[-1].endswith(last)
        assert script_traceback(exc_info.value).endswith(message)


def test_traceback_has_no_frames_of_replaced_functions() -> None:
    owner: Any = SimpleNamespace(step=step)
    for _ in range(3):
        hooks.wrap(owner, "step", lambda *_: None)
    with pytest.raises(RuntimeError) as exc_info:
        owner.step(1, LOST)
    traceback = parse_last(script_traceback(exc_info.value))
    assert [frame.function for frame in traceback.frames][1:] == ["step", "step"]
