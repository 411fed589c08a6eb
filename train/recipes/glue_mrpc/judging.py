"""Accuracy and F1 of a model on pairs that are shared out over the ranks. Both in percent."""

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
    """`batch_size` counts pairs per rank."""

    rows: Sequence[dict[str, Any]]
    collate: Collator
    batch_size: int
    bf16: bool

    def scores(self, model: Any, phase: str) -> tuple[dict[str, float], float]:
        """-> the figures, and pairs per second, on all ranks. `model` without DDP."""
        began = time.perf_counter()
        mine = self.rows[ranks.rank() :: ranks.world_size()]
        was_training = model.training
        model.eval()
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            judged = self.judge(model, mine, phase)
        model.train(was_training)
        gathered = [pair for part in ranks.gather(judged) for pair in part]
        scores = ranks.from_main(score(gathered) if ranks.is_main() else None)
        return dict(scores), len(self.rows) / (time.perf_counter() - began)

    def judge(self, model: Any, rows: Sequence[dict[str, Any]], phase: str) -> list[tuple[int, int]]:
        """(predicted, expected) for each row; rows of like length share a batch."""
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
    """GLUE's figures for MRPC: F1 is that of label 1."""
    # Slow to import, and only rank 0 needs it.
    from torchmetrics.functional.classification import binary_accuracy, binary_f1_score

    predicted, expected = (torch.tensor(values) for values in zip(*judged, strict=True))
    return {
        "accuracy": 100 * float(binary_accuracy(predicted, expected)),
        "f1": 100 * float(binary_f1_score(predicted, expected)),
    }
