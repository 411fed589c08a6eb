"""Data sets of a hub."""

from __future__ import annotations

from typing import Any

from orch_training.errors import RecipeError


def hub_rows(name: str, configuration: str | None, split: str) -> Any:
    """One split of a data set, row by row."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise RecipeError(
            "--dataset_name needs the package `datasets`; install it, or pass --train_file and "
            "--validation_file."
        ) from error
    try:
        return load_dataset(name, configuration, split=split)
    except Exception as error:  # network, name, split and script errors have no common class
        reason = str(error).splitlines()[0]
        raise RecipeError(f"cannot load the data set {name!r}: {reason}") from error
