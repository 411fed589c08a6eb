"""Check that a saved quantized model computes the same in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from features import Collator, Window
from int8 import Quantized
from orch_training import ranks
from orch_training.errors import RecipeError
from quant_config import QuantArguments


def verified(
    package: Path, windows: Sequence[Window], collate: Collator, names: Sequence[str], quant: QuantArguments
) -> dict[str, float] | None:
    """Compare the logits of the model in this process with those in a fresh process.

    Raises:
        RecipeError: if they differ by more than `--verify_tolerance`.
    """
    difference = None
    with ranks.raise_together():
        if ranks.is_main():
            batch = collate(windows)
            inputs = {name: batch[name] for name in names}
            difference = fresh_difference(package, inputs)
            if not difference <= quant.verify_tolerance:
                raise RecipeError(
                    f"{package}: loaded anew, logits are off by {difference:.2g}, over "
                    f"--verify_tolerance {quant.verify_tolerance:g}."
                )
            ranks.note(f"loaded in a fresh process: logits differ by {difference:.2g} at most.")
    return ranks.from_main({"difference": difference, "tolerance": quant.verify_tolerance})


def fresh_difference(package: Path, inputs: dict[str, Any]) -> float:
    """Return the largest difference of a logit between this process and a fresh one.

    Raises:
        RecipeError: if the fresh process cannot load the model.
    """
    script = Path(__file__).resolve().with_name("verify_loading.py")
    source, target = package.with_name(".inputs.pt"), package.with_name(".outputs.pt")
    torch.save(inputs, source)
    command = [sys.executable, str(script), str(package), str(source), str(target)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise RecipeError(f"{package} cannot be loaded: {process.stderr.strip()[-500:]}")
    fresh = torch.load(target, weights_only=True)
    local = Quantized(package, list(inputs))(**inputs)
    source.unlink()
    target.unlink()
    logits = ((local.start_logits, fresh["start"]), (local.end_logits, fresh["end"]))
    return max(float((a - b).abs().max()) for a, b in logits)
