"""Check a checkpoint's provenance, that a resumed run notices changes, and that no code in a file is run."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from orch_training import RecipeError, provenance, resume
from orch_training.arguments import ModelArguments
from orch_training.checkpoint import MANIFEST
from orch_training.provenance import FACT, check_provenance, provenance_of

ROWS = [{"input_ids": [101, 7, 102], "labels": 1}, {"input_ids": [101, 9, 102], "labels": 0}]


@dataclass
class Options:
    learning_rate: float = 0.1
    seed: int = 42
    save_steps: int = field(default=5, compare=False)


@pytest.fixture
def model(tmp_path: Path) -> ModelArguments:
    """Return the arguments for a model with two files."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return ModelArguments(model_name_or_path=str(folder))


def make(model: ModelArguments, rows: list[dict[str, Any]] | None = None, **options: Any) -> dict[str, Any]:
    data = {"training data": ROWS if rows is None else rows, "evaluation data": ["q"]}
    return provenance_of(__file__, model, data, Options(**options))


def make_checkpoint(folder: Path, recorded: dict[str, Any]) -> Path:
    """Write the manifest of a checkpoint that has this provenance."""
    checkpoint = folder / "checkpoint-5"
    checkpoint.mkdir()
    (checkpoint / MANIFEST).write_text(json.dumps({"step": 5, FACT: recorded}))
    return checkpoint


def test_equal_provenance_is_accepted(model: ModelArguments, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, make(model))
    check_provenance(make(model, [dict(row) for row in ROWS], save_steps=7), checkpoint)


def test_changed_data_settings_and_models_are_named(model: ModelArguments, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, make(model))
    for rows in ([{**ROWS[0], "labels": 0}, ROWS[1]], [ROWS[1], ROWS[0]], ROWS[:1]):
        with pytest.raises(RecipeError, match=r"^training data changed since checkpoint-5 was written"):
            check_provenance(make(model, rows), checkpoint)
    with pytest.raises(RecipeError, match=r"setting learning_rate \(0\.2, before: 0\.1\) changed"):
        check_provenance(make(model, learning_rate=0.2), checkpoint)
    Path(model.model_name_or_path, "model.safetensors").write_bytes(b"others!")
    with pytest.raises(RecipeError, match=r"^model changed"):
        check_provenance(make(model), checkpoint)


def test_force_continues_with_a_note(
    model: ModelArguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = make_checkpoint(tmp_path, make(model))
    monkeypatch.setenv("ORCH_FORCE_RESUME", "1")
    check_provenance(make(model, []), checkpoint)
    assert "note: training data changed since checkpoint-5" in capsys.readouterr().out


def make_with_code(script: Path, model: ModelArguments) -> dict[str, Any]:
    return provenance_of(str(script), model, {})


def test_changed_code_of_the_user_is_an_error(model: ModelArguments, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text("1")
    checkpoint = make_checkpoint(tmp_path, make_with_code(script, model))
    script.write_text("2")
    with pytest.raises(RecipeError, match=r"^code changed since checkpoint-5 was written"):
        check_provenance(make_with_code(script, model), checkpoint)


def test_another_version_of_orch_is_a_note(
    model: ModelArguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(provenance, "LIBRARY", tmp_path / "lib")
    monkeypatch.setattr(provenance, "INCLUDED", tmp_path / "recipes")
    script = tmp_path / "recipes/mine/run.py"
    for file in (script, tmp_path / "lib/shared.py"):
        file.parent.mkdir(parents=True)
        file.write_text("1")
    checkpoint = make_checkpoint(tmp_path, make_with_code(script, model))
    check_provenance(make_with_code(script, model), checkpoint)
    assert not capsys.readouterr().out
    (tmp_path / "lib/shared.py").write_text("2")
    check_provenance(make_with_code(script, model), checkpoint)
    assert "note: orch changed since checkpoint-5 was written" in capsys.readouterr().out


class Payload:
    """An object that runs a program when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch {os.environ['PAYLOAD_MARK']}",)


def test_code_in_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, file = tmp_path / "ran", tmp_path / "rng_state.pth"
    monkeypatch.setenv("PAYLOAD_MARK", str(mark))
    torch.save({"cpu": torch.ones(1), "python": Payload()}, file)
    with pytest.raises(RecipeError, match="contains more than numbers"):
        resume.load_numbers(file)
    assert not mark.exists()
