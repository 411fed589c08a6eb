"""What must not end the thread that measures a rank and sends its heartbeats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from orch_node.rank import metrics


class Unreadable:
    def item(self) -> float:
        raise KeyError("loss")


def test_metrics_are_written_without_a_loss_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ranks").mkdir()
    monkeypatch.setitem(metrics.NOTED, "loss", Unreadable())
    measured = metrics.Metrics(torch, tmp_path, rank=0)
    measured.write()
    assert json.loads(measured.path.read_text())["loss"] is None


def test_no_metrics_are_written_while_too_many_files_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ranks").mkdir()
    measured = metrics.Metrics(torch, tmp_path, rank=0)

    def fail(*_: object, **__: object) -> str:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", fail)
        measured.write()
    assert not measured.path.exists()
    measured.write()
    assert json.loads(measured.path.read_text())["steps"] == 0
