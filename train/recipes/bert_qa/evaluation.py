"""Score a model on questions that are divided among the ranks."""

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
    """The questions to evaluate on and the settings of the evaluation.

    Attributes:
        questions: the questions of all ranks.
        tokenizer: the tokenizer of the model.
        collate: makes a batch of windows.
        search: how answers are searched.
        max_length: the tokens of a window.
        stride: the tokens that two neighbouring windows share.
        batch_size: windows per rank.
        bf16: whether the model runs under autocast.
    """

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
    """The result of an evaluation.

    Attributes:
        em: exact match in percent, the same on all ranks.
        f1: F1 in percent, the same on all ranks.
        questions_per_second: the speed over all ranks.
        predictions: the answers in the order of the questions; empty except on rank 0.
    """

    em: float
    f1: float
    questions_per_second: float
    predictions: tuple[Prediction, ...]

    @property
    def scores(self) -> dict[str, float]:
        """Return EM and F1 in percent."""
        return {"em": self.em, "f1": self.f1}


def evaluate(model: Any, evaluator: Evaluator, phase: str) -> Evaluation:
    """Evaluate a model on all ranks, each with its share of the questions.

    Only the predicted answers are exchanged. The model must not be wrapped in DDP.
    """
    began = time.perf_counter()
    local_questions = evaluator.questions[ranks.rank() :: ranks.world_size()]
    with ranks.raise_together():
        windows = make_windows(
            local_questions, evaluator.tokenizer, max_length=evaluator.max_length, stride=evaluator.stride
        )
    with evaluating(model, bf16=evaluator.bf16):
        scored = score_windows(model, windows, evaluator, phase)
    predictions = [
        predict(question, scored.get(index, []), evaluator.search) for index, question in enumerate(local_questions)
    ]
    gathered = in_order(ranks.gather(predictions))
    seconds = time.perf_counter() - began
    scores = ranks.from_main(main_scores(gathered, evaluator.questions))
    return Evaluation(
        **scores,
        questions_per_second=len(evaluator.questions) / seconds,
        predictions=tuple(gathered) if ranks.is_main() else (),
    )


def in_order(parts: Sequence[Sequence[Prediction]]) -> list[Prediction]:
    """Return predictions in the order of the questions; rank i % ranks has predicted question i."""
    total = sum(len(part) for part in parts)
    return [parts[index % len(parts)][index // len(parts)] for index in range(total)]


def main_scores(predictions: Sequence[Prediction], questions: Sequence[Question]) -> dict[str, float] | None:
    """Return the scores on rank 0, and None on other ranks."""
    if not ranks.is_main():
        return None
    return score({prediction.id: prediction.text for prediction in predictions}, questions)


@contextlib.contextmanager
def evaluating(model: Any, *, bf16: bool) -> Iterator[None]:
    """Switch off dropout and gradients within the context, with the precision of training."""
    was_training = model.training
    model.eval()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        yield
    model.train(was_training)


def score_windows(model: Any, windows: Sequence[Window], evaluator: Evaluator, phase: str) -> dict[int, list[Scores]]:
    """Return the scored windows of each question.

    Windows of similar length share a batch, which reduces padding.
    """
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
    """Return the scores of the tokens of each window in a batch."""
    inputs = collate(batch)
    del inputs["start_positions"], inputs["end_positions"]  # no loss is needed
    output = model(**inputs)
    starts, ends = output.start_logits.float().tolist(), output.end_logits.float().tolist()
    return [Scores(window=window, start=start, end=end) for window, start, end in zip(batch, starts, ends, strict=True)]
