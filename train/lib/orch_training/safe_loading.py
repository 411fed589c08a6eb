"""Numbers from a file of torch.save, and never code: a checkpoint may come from anybody.

A checksum beside a file tells that it is whole, not who wrote it.
"""

from __future__ import annotations

import inspect
import pickle  # nosec B403
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from orch_training.errors import RecipeError

# What a state_dict() of tensors and numbers is made of, in the words of a pickle.
ALLOWED = {
    ("collections", "OrderedDict"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch", "Size"),
}
NUMBERS = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
STORAGES = {f"{kind}Storage" for kind in NUMBERS}


class NumbersOnly(pickle.Unpickler):
    """For torch before 1.13, which has no weights_only."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED or (module == "torch" and name in STORAGES):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no number")


def options() -> dict[str, Any]:
    if "weights_only" in inspect.signature(torch.load).parameters:
        return {"weights_only": True}
    return {"pickle_module": numbers_only()}


def numbers_only() -> Any:
    """As torch.load wants a pickle module."""
    return SimpleNamespace(
        Unpickler=NumbersOnly, load=lambda file, **words: NumbersOnly(file, **words).load(), __name__="numbers_only"
    )


def read(path: Path) -> Any:
    """What the file holds, on the CPU. Raises RecipeError if that is more than numbers."""
    try:
        return torch.load(path, map_location="cpu", **options())  # nosec
    except pickle.UnpicklingError:
        raise RecipeError(
            f"{path} holds more than numbers, which could be code that runs when it is read: it "
            "was written by an older orch, or by somebody else. Go on from another checkpoint, or "
            "start anew with --resume_from_checkpoint none."
        ) from None
