"""Compute accuracy and F1 of a model, in percent, on pairs that are divided among the ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from orch_training import ranks
from orch_training.results import score_in_batches
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
        rows = sorted(self.rows[ranks.rank() :: ranks.world_size()], key=lambda row: len(row["input_ids"]))
        judge = partial(self.judge, model)
        judged = score_in_batches(model, rows, judge, batch_size=self.batch_size, bf16=self.bf16, phase=phase)
        gathered = [labels for part in ranks.gather(judged) for labels in part]
        scores = ranks.from_main(score(gathered) if ranks.is_main() else None)
        return dict(scores), len(self.rows) / (time.perf_counter() - start)

    def judge(self, model: Any, rows: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int]]:
        """Return the predicted and the expected label of each row."""
        batch = self.collate(rows)
        labels = batch.pop("labels").tolist()
        return zip(model(**batch).logits.argmax(dim=-1).tolist(), labels, strict=True)


def score(judged: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Return the scores that GLUE defines for MRPC; F1 is that of label 1."""
    # Slow to import, and only rank 0 needs it.
    from torchmetrics.functional.classification import binary_accuracy, binary_f1_score

    predicted, expected = (torch.tensor(values) for values in zip(*judged, strict=True))
    return {
        "accuracy": 100 * float(binary_accuracy(predicted, expected)),
        "f1": 100 * float(binary_f1_score(predicted, expected)),
    }
