"""What the verification of a node prepares for its runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from orch_node import verify


def test_programs_are_compiled_before_the_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text("value = 1\n")
    monkeypatch.setattr(verify, "LIB", tmp_path)
    verify.load("gloo")
    assert [path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")] == ["program"]
