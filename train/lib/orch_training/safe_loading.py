"""Loads numbers, but no code, from a file of torch.save: checkpoints may come from anybody.

A checksum next to a file shows that it is complete, but not who wrote it.
"""

from __future__ import annotations

import inspect
import pickle  # nosec B403
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from orch_training.errors import RecipeError

# The globals in the pickle of a state_dict() of tensors and numbers.
ALLOWED = {
    ("collections", "OrderedDict"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch", "Size"),
}
NUMBERS = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
STORAGES = {f"{kind}Storage" for kind in NUMBERS}


class NumbersOnly(pickle.Unpickler):
    """An unpickler of numbers for torch before 1.13, which has no weights_only."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED or (module == "torch" and name in STORAGES):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not a number")


def options() -> dict[str, Any]:
    if "weights_only" in inspect.signature(torch.load).parameters:
        return {"weights_only": True}
    return {"pickle_module": numbers_only()}


def numbers_only() -> Any:
    """Return the unpickler as the pickle module that torch.load expects."""
    return SimpleNamespace(
        Unpickler=NumbersOnly, load=lambda file, **options: NumbersOnly(file, **options).load(), __name__="numbers_only"
    )


def read(path: Path) -> Any:
    """Return the content of a file on the CPU.

    Raises:
        RecipeError: if it contains anything except numbers.
    """
    try:
        return torch.load(path, map_location="cpu", **options())  # nosec
    except pickle.UnpicklingError:
        raise RecipeError(
            f"{path} contains more than numbers, which could be code that runs when it is read: an older orch or "
            "somebody else wrote it. Resume from another checkpoint, or start from the beginning with "
            "--resume_from_checkpoint none."
        ) from None
