"""Compute accuracy and F1 of a model, in percent, on pairs that are divided among the ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from orch_training import ranks
from orch_training.events import Progress
from pairs import Collator


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """The pairs to evaluate on and the settings of the evaluation.

    Attributes:
        rows: the pairs as tokens.
        collate: makes a batch of rows.
        batch_size: pairs per rank.
        bf16: whether the model runs under autocast.
    """

    rows: Sequence[dict[str, Any]]
    collate: Collator
    batch_size: int
    bf16: bool

    def scores(self, model: Any, phase: str) -> tuple[dict[str, float], float]:
        """Return the scores and the pairs per second; `model` must not be wrapped in DDP."""
        start = time.perf_counter()
        local_rows = self.rows[ranks.rank() :: ranks.world_size()]
        was_training = model.training
        model.eval()
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            judged = self.judge(model, local_rows, phase)
        model.train(was_training)
        gathered = [labels for part in ranks.gather(judged) for labels in part]
        scores = ranks.from_main(score(gathered) if ranks.is_main() else None)
        return dict(scores), len(self.rows) / (time.perf_counter() - start)

    def judge(self, model: Any, rows: Sequence[dict[str, Any]], phase: str) -> list[tuple[int, int]]:
        """Return the predicted and the expected label of each row; rows in a batch have similar lengths."""
        ordered = sorted(rows, key=lambda row: len(row["input_ids"]))
        starts = range(0, len(ordered), self.batch_size)
        progress = Progress(phase, len(starts))
        judged: list[tuple[int, int]] = []
        for number, start in enumerate(starts, start=1):
            batch = self.collate(ordered[start : start + self.batch_size])
            labels = batch.pop("labels").tolist()
            predicted = model(**batch).logits.argmax(dim=-1).tolist()
            judged += zip(predicted, labels, strict=True)
            progress.report(number, now=number == len(starts))
        return judged


def score(judged: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Return the scores that GLUE defines for MRPC; F1 is that of label 1."""
    # Slow to import, and only rank 0 needs it.
    from torchmetrics.functional.classification import binary_accuracy, binary_f1_score

    predicted, expected = (torch.tensor(values) for values in zip(*judged, strict=True))
    return {
        "accuracy": 100 * float(binary_accuracy(predicted, expected)),
        "f1": 100 * float(binary_f1_score(predicted, expected)),
    }
