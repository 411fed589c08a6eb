"""Measure the speed of each precision in turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from orch_training import ranks
from orch_training.events import Progress

ROUNDS = 5


def speeds(models: Mapping[str, Any], batches: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the windows per second over all ranks: the best of several rounds after a warm-up.

    The model with the name "bf16" runs under autocast.
    """
    best = dict.fromkeys(models, float("inf"))
    progress = Progress("measure speed", ROUNDS)
    for number in range(ROUNDS + 1):
        for name, model in models.items():
            ranks.gather(None)  # barrier: all ranks begin at the same time
            seconds = timed(model, batches, bf16=name == "bf16")
            if number:
                best[name] = min(best[name], seconds)
        progress.report(number)
    windows = sum(len(batch["input_ids"]) for batch in batches)
    return {name: round(ranks.sum_over_ranks(windows / best[name]), 3) for name in models}


def timed(model: Any, batches: Sequence[Mapping[str, Any]], *, bf16: bool) -> float:
    """Return the seconds in which the model computes all batches."""
    model.eval()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        began = time.perf_counter()
        for batch in batches:
            model(**batch)
        return time.perf_counter() - began
