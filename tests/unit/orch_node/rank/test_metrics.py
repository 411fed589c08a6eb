"""What must not end the thread that measures a rank and sends its heartbeats."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from orch_node.rank import metrics


class Unreadable:
    def item(self) -> float:
        raise KeyError("loss")


def test_errors_do_not_end_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files lose one line; a loss that cannot be read is left out."""
    (tmp_path / "ranks").mkdir()
    monkeypatch.setitem(metrics.NOTED, "loss", Unreadable())
    measured = metrics.Metrics(torch, tmp_path, rank=0)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda *_, **__: os.stat(tmp_path / "missing"))
        measured.write()
    assert not measured.path.exists()
    measured.write()
    assert json.loads(measured.path.read_text())["loss"] is None
