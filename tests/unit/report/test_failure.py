"""The error of a failed rank in a report: on a screen, once for all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.report.training import error_lines
from tests.unit.runs.test_tracebacks import SHAPES


def test_error_on_the_screen_is_repeated_with_its_line_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = SHAPES.replace("/home/me/net", str(tmp_path))
    assert list(error_lines(text, is_shown=True)) == [
        'File "train.py", line 4, in step',
        "  return model(x)",
        SHAPES.splitlines()[-1],
    ]
    assert len(list(error_lines(text))) == 6
    output = "\n".join(map(str, range(100)))  # without a traceback
    assert list(error_lines(output)) == [str(number) for number in range(75, 100)]
