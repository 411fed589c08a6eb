"""Exact match and F1 as SQuAD defines them, by torchmetrics. Both in percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from squad import Question


def score(predictions: Mapping[str, str], questions: Sequence[Question]) -> dict[str, float]:
    """{"em": ..., "f1": ...} over all questions; every question needs a prediction."""
    from torchmetrics.functional.text import squad  # slow to import, and only rank 0 needs it

    predicted = [{"prediction_text": predictions[q.id], "id": q.id} for q in questions]
    result = squad(predicted, [target(question) for question in questions])
    return {"em": float(result["exact_match"]), "f1": float(result["f1"])}


def target(question: Question) -> dict[str, object]:
    """An unanswerable question is right if the empty text is predicted."""
    texts = [answer.text for answer in question.answers] or [""]
    starts = [answer.start for answer in question.answers] or [0]
    return {"answers": {"text": texts, "answer_start": starts}, "id": question.id}
