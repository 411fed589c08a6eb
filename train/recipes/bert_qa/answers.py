"""Choose answer texts by start and end scores: n-best over all windows of a question.

The method is that of BERT's run_squad.py (Devlin et al. 2018) and of Hugging Face's utils_qa.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from features import Offset, Window
from squad import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The settings of the search for answers.

    Attributes:
        n_best_size: the number of candidates that are retained per question.
        max_answer_length: the largest number of tokens in an answer.
        version_2_with_negative: whether questions may have no answer.
        null_score_diff_threshold: how far "no answer" must lead the best text to be predicted.
    """

    n_best_size: int = 20
    max_answer_length: int = 30
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """A window with the model's scores for each of its tokens to start or end the answer."""

    window: Window
    start: Sequence[float]
    end: Sequence[float]

    @property
    def null(self) -> float:
        """Return the score of "no answer in this window": [CLS] as start and end."""
        return self.start[0] + self.end[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A possible answer with its score."""

    text: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted answer to a question.

    Attributes:
        id: the id of the question.
        text: the answer; empty if the question has none.
        nbest: text, probability and score of each candidate, best first.
    """

    id: str
    text: str
    nbest: tuple[dict[str, Any], ...]


def predict(question: Question, scores: Sequence[Scores], search: Search) -> Prediction:
    """Predict the answer to a question from the scores of its windows."""
    candidates = [
        candidate for window_scores in scores for candidate in window_candidates(question, window_scores, search)
    ]
    null = min((window_scores.null for window_scores in scores), default=0.0)
    if search.version_2_with_negative:
        candidates.append(Candidate(text="", score=null))
    best_candidates = nbest(candidates, search.n_best_size)
    return Prediction(
        id=question.id, text=best_answer(best_candidates, null, search), nbest=with_probabilities(best_candidates)
    )


def window_candidates(question: Question, part: Scores, search: Search) -> list[Candidate]:
    """Return the spans between the best starts and ends of a window."""
    offsets = part.window.offsets
    ends = top(part.end, offsets, search.n_best_size)
    candidates = []
    for start in top(part.start, offsets, search.n_best_size):
        for end in ends:
            if start <= end < start + search.max_answer_length:
                text = span_text(question.context, offsets[start], offsets[end])
                candidates.append(Candidate(text=text, score=part.start[start] + part.end[end]))
    return candidates


def top(scores: Sequence[float], offsets: Sequence[Offset | None], count: int) -> list[int]:
    """Return the `count` tokens of the context with the highest scores."""
    inside = [index for index, offset in enumerate(offsets) if offset is not None]
    return sorted(inside, key=lambda index: scores[index], reverse=True)[:count]


def span_text(context: str, first: Offset | None, last: Offset | None) -> str:
    """Return the text of the context between two tokens."""
    assert first is not None
    assert last is not None
    return context[first[0] : last[1]]


def nbest(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """Return the best candidates, each text once.

    "No answer" is always retained, however low its score. The result is never empty.
    """
    unique: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda candidate: candidate.score, reverse=True):
        unique.setdefault(candidate.text, candidate)
    best = list(unique.values())[:count]
    if "" in unique and unique[""] not in best:
        best.append(unique[""])
    return best or [Candidate(text="", score=0.0)]


def best_answer(best: Sequence[Candidate], null: float, search: Search) -> str:
    """Return the best text, or an empty one if "no answer" beats it by more than the threshold."""
    best_text = next((candidate for candidate in best if candidate.text), None)
    if best_text is None:
        return ""
    refused = null - best_text.score > search.null_score_diff_threshold
    return "" if search.version_2_with_negative and refused else best_text.text


def with_probabilities(best: Sequence[Candidate]) -> tuple[dict[str, Any], ...]:
    """Add the probability of each candidate: the softmax over all of them."""
    highest = max(candidate.score for candidate in best)
    weights = [math.exp(candidate.score - highest) for candidate in best]
    return tuple(
        {"text": candidate.text, "probability": weight / sum(weights), "score": candidate.score}
        for candidate, weight in zip(best, weights, strict=True)
    )
