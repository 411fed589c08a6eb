"""Loads numbers, but no code, from a file of torch.save: checkpoints may come from anybody.

A checksum next to a file shows that it is complete, but not who wrote it.
"""

from __future__ import annotations

import pickle  # nosec B403
from pathlib import Path
from typing import Any

import torch

from orch_training.errors import RecipeError


def read(path: Path) -> Any:
    """Return the content of a file on the CPU.

    Raises:
        RecipeError: if it contains anything except numbers.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)  # nosec
    except pickle.UnpicklingError:
        raise RecipeError(
            f"{path} contains more than numbers, which could be code that runs when it is read: an older orch or "
            "somebody else wrote it. Resume from another checkpoint, or start from the beginning with "
            "--resume_from_checkpoint none."
        ) from None
