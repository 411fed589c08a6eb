"""Load only numbers from checkpoints, and run no code that a file contains."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from orch_training import RecipeError, snapshot  # noqa: E402


class Payload:
    """An object that runs a program when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch {os.environ['PAYLOAD_MARK']}",)


def make_states() -> dict[str, Any]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "name": "x",
        "step": 3,
    }


def test_numbers_are_read_as_written(tmp_path: Path) -> None:
    written, file = make_states(), tmp_path / "state.pt"
    torch.save(written, file)
    read = snapshot.load_numbers(file)
    assert torch.equal(read["model"]["weight"], written["model"]["weight"])
    assert torch.equal(read["half"], written["half"])
    assert read["optimizer"]["param_groups"] == written["optimizer"]["param_groups"]
    assert (read["name"], read["step"]) == ("x", 3)


def test_code_in_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, file = tmp_path / "ran", tmp_path / "rng_state.pth"
    monkeypatch.setenv("PAYLOAD_MARK", str(mark))
    torch.save({"cpu": torch.ones(1), "python": Payload()}, file)
    with pytest.raises(RecipeError, match="contains more than numbers"):
        snapshot.load_numbers(file)
    assert not mark.exists()


def test_random_states_of_the_trainer_are_refused_with_a_hint(tmp_path: Path) -> None:
    file = tmp_path / "rng_state.pth"
    torch.save({"numpy": numpy.random.get_state()}, file)
    with pytest.raises(RecipeError, match="--resume_from_checkpoint none"):
        snapshot.load_numbers(file)
