"""The error of a failed rank in a report: on a screen, once for all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.report.training import describe_same_error, error_lines
from tests.unit.runs.test_tracebacks import SEGMENTATION_FAULT, SHAPES


def test_error_that_is_on_the_screen_is_repeated_with_its_line_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = SHAPES.replace("/home/me/net", str(tmp_path))
    assert list(error_lines(text, is_shown=True)) == [
        'File "train.py", line 4, in step',
        "  return model(x)",
        SHAPES.splitlines()[-1],
    ]
    assert len(list(error_lines(text))) == 6


def test_fatal_signal_is_shown_with_the_line_of_the_script() -> None:
    lines = list(error_lines(SEGMENTATION_FAULT))
    assert lines[1] == 'File "/home/me/net/segv.py", line 3, in main'
    assert lines[-1] == "Fatal Python error: Segmentation fault"


def test_output_without_a_traceback_is_shown_at_its_end() -> None:
    text = "\n".join(map(str, range(100)))
    assert list(error_lines(text)) == [str(number) for number in range(75, 100)]
    assert list(error_lines(text, is_shown=True)) == ["99"]
    assert list(error_lines("")) == []


def test_ranks_with_the_same_error_are_named_in_one_line() -> None:
    assert describe_same_error((0, 2, 3)) == ["ranks 0,2-3 had the same error"]
    assert describe_same_error((1,)) == ["rank 1 had the same error"]
    assert describe_same_error(()) == []
