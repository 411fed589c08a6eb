"""Score a model on questions that are divided among the ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from answers import Prediction, Scores, Search, predict
from features import Collator, Window, make_windows
from orch_training import ranks
from orch_training.results import score_in_batches
from squad import Question

T = TypeVar("T")


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
    windows.sort(key=lambda window: len(window.input_ids))
    score_windows = partial(score_batch, model, evaluator.collate)
    size, bf16 = evaluator.batch_size, evaluator.bf16
    by_question: dict[int, list[Scores]] = {}
    for window_scores in score_in_batches(model, windows, score_windows, batch_size=size, bf16=bf16, phase=phase):
        by_question.setdefault(window_scores.window.question, []).append(window_scores)
    predictions = [
        predict(question, by_question.get(index, []), evaluator.search)
        for index, question in enumerate(local_questions)
    ]
    fields = in_order(ranks.gather([asdict(prediction) for prediction in predictions]))
    gathered = [Prediction(**values) for values in fields]
    seconds = time.perf_counter() - began
    texts = {prediction.id: prediction.text for prediction in gathered}
    scores = ranks.from_main(score(texts, evaluator.questions) if ranks.is_main() else None)
    return Evaluation(
        **scores,
        questions_per_second=len(evaluator.questions) / seconds,
        predictions=tuple(gathered) if ranks.is_main() else (),
    )


def in_order(parts: Sequence[Sequence[T]]) -> list[T]:
    """Return predictions in the order of the questions; rank i % ranks has predicted question i."""
    total = sum(len(part) for part in parts)
    return [parts[index % len(parts)][index // len(parts)] for index in range(total)]


def score_batch(model: Any, collate: Collator, batch: Sequence[Window]) -> list[Scores]:
    """Return the scores of the tokens of each window in a batch."""
    inputs = collate(batch)
    del inputs["start_positions"], inputs["end_positions"]  # no loss is needed
    output = model(**inputs)
    starts, ends = output.start_logits.float().tolist(), output.end_logits.float().tolist()
    return [Scores(window=window, start=start, end=end) for window, start, end in zip(batch, starts, ends, strict=True)]


def score(predictions: Mapping[str, str], questions: Sequence[Question]) -> dict[str, float]:
    """Return exact match and F1 in percent as SQuAD defines them; each question needs a prediction."""
    from torchmetrics.functional.text import squad  # slow to import, and only rank 0 needs it

    predicted = [{"prediction_text": predictions[q.id], "id": q.id} for q in questions]
    result = squad(predicted, [target(question) for question in questions])
    return {"em": float(result["exact_match"]), "f1": float(result["f1"])}


def target(question: Question) -> dict[str, object]:
    """Return the expected answers; an unanswerable question expects the empty text."""
    texts = [expected.text for expected in question.answers] or [""]
    starts = [expected.start for expected in question.answers] or [0]
    return {"answers": {"text": texts, "answer_start": starts}, "id": question.id}
