"""Compute exact match and F1 in percent as SQuAD defines them, with torchmetrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from squad import Question


def score(predictions: Mapping[str, str], questions: Sequence[Question]) -> dict[str, float]:
    """Return `em` and `f1` over all questions, each of which needs a prediction."""
    from torchmetrics.functional.text import squad  # slow to import, and only rank 0 needs it

    predicted = [{"prediction_text": predictions[q.id], "id": q.id} for q in questions]
    result = squad(predicted, [target(question) for question in questions])
    return {"em": float(result["exact_match"]), "f1": float(result["f1"])}


def target(question: Question) -> dict[str, object]:
    """Return the expected answers; an unanswerable question expects the empty text."""
    texts = [expected.text for expected in question.answers] or [""]
    starts = [expected.start for expected in question.answers] or [0]
    return {"answers": {"text": texts, "answer_start": starts}, "id": question.id}
