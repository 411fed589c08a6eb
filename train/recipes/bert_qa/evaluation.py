"""Scores a model on questions that are shared out over the ranks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from answers import Prediction, Scores, Search, predict
from features import Collator, Window, make_windows
from orch_training import ranks
from orch_training.events import Progress
from scoring import score
from squad import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """What to evaluate on, and how. `batch_size` counts windows per rank."""

    questions: Sequence[Question]
    tokenizer: Any
    collate: Collator
    search: Search
    max_length: int
    stride: int
    batch_size: int
    bf16: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """`predictions` only on rank 0; the figures on all ranks. `em` and `f1` in percent."""

    em: float
    f1: float
    questions_per_second: float
    predictions: tuple[Prediction, ...]

    @property
    def scores(self) -> dict[str, float]:
        return {"em": self.em, "f1": self.f1}


def evaluate(model: Any, evaluator: Evaluator, phase: str) -> Evaluation:
    """Each rank answers its own questions; only the answers travel. `model` without DDP."""
    began = time.perf_counter()
    mine = evaluator.questions[ranks.rank() :: ranks.world_size()]
    with ranks.raise_together():
        windows = make_windows(mine, evaluator.tokenizer, max_length=evaluator.max_length, stride=evaluator.stride)
    with evaluating(model, bf16=evaluator.bf16):
        scored = score_windows(model, windows, evaluator, phase)
    answered = [predict(question, scored.get(index, []), evaluator.search) for index, question in enumerate(mine)]
    gathered = in_order(ranks.gather(answered))
    seconds = time.perf_counter() - began
    scores = ranks.from_main(main_scores(gathered, evaluator.questions))
    return Evaluation(
        **scores,
        questions_per_second=len(evaluator.questions) / seconds,
        predictions=tuple(gathered) if ranks.is_main() else (),
    )


def in_order(parts: Sequence[Sequence[Prediction]]) -> list[Prediction]:
    """Question i was answered by rank i % ranks; back to the order of the questions."""
    total = sum(len(part) for part in parts)
    return [parts[index % len(parts)][index // len(parts)] for index in range(total)]


def main_scores(predictions: Sequence[Prediction], questions: Sequence[Question]) -> dict[str, float] | None:
    if not ranks.is_main():
        return None
    return score({prediction.id: prediction.text for prediction in predictions}, questions)


@contextlib.contextmanager
def evaluating(model: Any, *, bf16: bool) -> Iterator[None]:
    """No dropout, no gradients; the precision of training."""
    was_training = model.training
    model.eval()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        yield
    model.train(was_training)


def score_windows(model: Any, windows: Sequence[Window], evaluator: Evaluator, phase: str) -> dict[int, list[Scores]]:
    """Question -> its scored windows. Windows of like length share a batch: less padding."""
    ordered = sorted(windows, key=lambda window: len(window.input_ids))
    batches = range(0, len(ordered), evaluator.batch_size)
    progress = Progress(phase, len(batches))
    scored: dict[int, list[Scores]] = {}
    for number, first in enumerate(batches, start=1):
        batch = ordered[first : first + evaluator.batch_size]
        for part in score_batch(model, batch, evaluator.collate):
            scored.setdefault(part.window.question, []).append(part)
        progress.report(number, now=number == len(batches))
    return scored


def score_batch(model: Any, batch: Sequence[Window], collate: Collator) -> list[Scores]:
    inputs = collate(batch)
    del inputs["start_positions"], inputs["end_positions"]  # no loss is needed
    output = model(**inputs)
    starts, ends = output.start_logits.float().tolist(), output.end_logits.float().tolist()
    return [Scores(window=window, start=start, end=end) for window, start, end in zip(batch, starts, ends, strict=True)]
