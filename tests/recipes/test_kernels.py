"""Check which kernels a recipe uses, and that all ranks and resumed runs use the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from orch_training import checkpoint, kernels  # noqa: E402

orch_kernels = kernels.orch_kernels
LACKING = "the package orch_kernels is not installed"


@pytest.mark.parametrize(
    ("problems", "recorded", "expected"),
    [
        ([None, None], None, (True, "")),
        ([None, None], "orch", (True, "")),
        ([None, None], "torch", (False, "as in the checkpoint")),
        ([None, LACKING], "orch", (False, LACKING)),
        (["as requested"] * 2, "orch", (False, "as requested")),
    ],
)
def test_ranks_choose_equal_kernels(problems: list[str | None], recorded: object, expected: tuple[bool, str]) -> None:
    assert kernels.choose(problems, recorded) == expected


@pytest.mark.skipif(not orch_kernels or orch_kernels.problem(), reason="the kernels are not installed")
def test_resumed_run_keeps_torchs_functions(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    for name in ("orch", "torch"):
        (tmp_path / name).mkdir()
        checkpoint.seal(tmp_path / name, step=3, kernels=name)
    try:
        assert kernels.attention() is None
        assert kernels.settle() == kernels.settle(tmp_path / "orch") == "orch's"
        assert kernels.selected() == "orch"
        assert kernels.settle(tmp_path / "torch") == "torch's (as in the checkpoint)"
        assert kernels.selected() == "torch"
        monkeypatch.setenv("ORCH_KERNELS", "torch")
        assert kernels.attention() == "eager"
        assert kernels.settle(tmp_path / "orch") == "torch's (as requested)"
        assert "orch was written with orch's kernels: dropout differs" in capsys.readouterr().out
    finally:
        orch_kernels.restore()


def test_kernels_for_another_torch_are_not_loaded(tmp_path: Path, monkeypatch: Any) -> None:
    if not orch_kernels:
        pytest.skip("the kernels are not installed")
    from orch_kernels import library

    monkeypatch.setattr(library, "TORCH", "2.8.0")
    assert library.load.__wrapped__().startswith("they were built for torch 2.8.0, not ")
    monkeypatch.setattr(library, "TORCH", torch.__version__.split("+")[0])
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    assert library.load.__wrapped__() == f"{tmp_path} does not contain _kernels"
    (tmp_path / "_kernels.cpython.so").touch()
    assert "cannot be loaded" in library.load.__wrapped__()
