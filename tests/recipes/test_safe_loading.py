"""Run no code that a file of a checkpoint contains."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from orch_training import RecipeError, snapshot  # noqa: E402


class Payload:
    """An object that runs a program when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch {os.environ['PAYLOAD_MARK']}",)


def test_code_in_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, file = tmp_path / "ran", tmp_path / "rng_state.pth"
    monkeypatch.setenv("PAYLOAD_MARK", str(mark))
    torch.save({"cpu": torch.ones(1), "python": Payload()}, file)
    with pytest.raises(RecipeError, match="contains more than numbers"):
        snapshot.load_numbers(file)
    assert not mark.exists()
