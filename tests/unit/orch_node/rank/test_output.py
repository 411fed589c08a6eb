"""The end of a rank's log, as the reason for its end."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from orch_node.rank.output import TAIL_BYTES, log_tail
from orch_node.streams import MARKS, STDERR

FRAME = '  File "/home/user/orch/train/recipes/bert_qa/run_qa.py", line 1 in main\n'


def make_log(folder: Path, text: str) -> Path:
    path = folder / "rank-0.log"
    path.write_text(text)
    return path


def test_log_tail_omits_what_orch_itself_printed_and_warnings_of_torch(tmp_path: Path) -> None:
    warning = "[W1127 00:59:18.033539011 socket.cpp:207] [c10d] The hostname cannot be retrieved. err=-3"
    text = f"{warning}\none\norch: the script requests a process group\n"
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
