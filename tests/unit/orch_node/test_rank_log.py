"""What a rank's log says at its end."""

from __future__ import annotations

from pathlib import Path

from orch_node.rank.log import LAST_WORDS, last_words

FRAME = '  File "/home/user/orch/train/recipes/bert_qa/run_qa.py", line 1 in main\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "rank-0.log"
    path.write_text(text)
    return path


def test_the_end_of_a_log(tmp_path: Path) -> None:
    assert last_words(written(tmp_path, "")) == ""
    assert last_words(written(tmp_path, "one\ntwo\n")) == "one\ntwo"
    long = "".join(f"line {number}\n" for number in range(1000))
    assert long.strip().endswith(last_words(written(tmp_path, long)))
    assert len(last_words(written(tmp_path, long))) < LAST_WORDS


def test_the_name_of_a_crash_stands_before_its_stack_traces(tmp_path: Path) -> None:
    before = "early\n" * 1000 + "free(): invalid pointer\n"
    text = before + "Fatal Python error: Aborted\n\n" + "Thread 1:\n" + FRAME * 400
    found = last_words(written(tmp_path, text))
    assert "free(): invalid pointer\nFatal Python error: Aborted" in found
    assert FRAME.strip() in found
    assert len(found) <= LAST_WORDS
