"""A checkpoint is numbers; whatever else a file holds is not run."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from orch_training import safe_loading  # noqa: E402
from orch_training.errors import RecipeError  # noqa: E402


class Payload:
    """What runs a program when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch {os.environ['PAYLOAD_MARK']}",)


def states() -> dict[str, Any]:
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


@pytest.fixture(params=["new torch", "old torch"])
def torches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights_only, and as before PyTorch 1.13."""
    if request.param == "old torch":
        old = {"pickle_module": safe_loading.numbers_only(), "weights_only": False}
        monkeypatch.setattr(safe_loading, "options", lambda: old)


@pytest.mark.usefixtures("torches")
def test_numbers_are_read_as_they_were_written(tmp_path: Path) -> None:
    written, file = states(), tmp_path / "state.pt"
    torch.save(written, file)
    read = safe_loading.read(file)
    assert torch.equal(read["model"]["weight"], written["model"]["weight"])
    assert torch.equal(read["half"], written["half"])
    assert read["optimizer"]["param_groups"] == written["optimizer"]["param_groups"]
    assert (read["name"], read["step"]) == ("x", 3)


@pytest.mark.usefixtures("torches")
def test_code_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, file = tmp_path / "ran", tmp_path / "rng_state.pth"
    monkeypatch.setenv("PAYLOAD_MARK", str(mark))
    torch.save({"cpu": torch.ones(1), "python": Payload()}, file)
    with pytest.raises(RecipeError, match="contains more than numbers"):
        safe_loading.read(file)
    assert not mark.exists()


@pytest.mark.usefixtures("torches")
def test_what_trainer_writes_of_its_own_is_refused_in_words(tmp_path: Path) -> None:
    file = tmp_path / "rng_state.pth"
    torch.save({"numpy": numpy.random.get_state()}, file)
    with pytest.raises(RecipeError, match="--resume_from_checkpoint none"):
        safe_loading.read(file)


def test_random_states_of_bert_qa_are_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    recipe = Path(safe_loading.__file__).parents[2] / "recipes" / "bert_qa"
    monkeypatch.setattr(sys, "path", [str(recipe), *sys.path])
    import qa_trainer

    file = tmp_path / "rng_state.pth"
    numpy.random.standard_normal()  # leaves a second one for the next time
    torch.save(qa_trainer.random_states(), file)
    drawn = [random.random(), numpy.random.standard_normal(), numpy.random.rand(), torch.rand(1)]
    qa_trainer.set_random_states(safe_loading.read(file))
    assert drawn == [random.random(), numpy.random.standard_normal(), numpy.random.rand(), torch.rand(1)]
