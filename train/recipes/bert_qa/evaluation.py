"""Answer questions that are divided among the ranks, and score the answers.

Answers are chosen by start and end scores, n-best over all windows of a question, as in BERT's run_squad.py
(Devlin et al. 2018) and in Hugging Face's utils_qa.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from config import Config, QaArguments
from orch_node.protocol.node_names import grouped
from orch_training import ranks
from orch_training.script import score_in_batches
from squad import ANSWER, Answer, Question, Window, make_windows


class Scores(NamedTuple):
    """A window with the model's scores for each of its tokens to start or end the answer."""

    window: Window
    start: Sequence[float]
    end: Sequence[float]


class Prediction(NamedTuple):
    """The predicted answer to a question.

    Attributes:
        text: the answer; empty if the question has none.
        nbest: text, probability and score of each candidate, best first.
    """

    text: str
    nbest: Sequence[dict[str, Any]]


class Evaluation(NamedTuple):
    """The result of an evaluation.

    Attributes:
        scores: exact match (em) and F1 (f1) in percent, the same on all ranks.
        questions_per_second: the speed over all ranks.
        predictions: the predicted answers by the ids of their questions.
    """

    scores: dict[str, float]
    questions_per_second: float
    predictions: dict[str, Prediction]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """The questions to evaluate on, and how.

    Attributes:
        config: the command line.
        questions: the questions of all ranks.
        tokenizer: the tokenizer of the model.
        collate: makes a batch of windows.
        max_length: the tokens of a window.
    """

    config: Config
    questions: Sequence[Question]
    tokenizer: Any
    collate: Callable[[Sequence[Window]], dict[str, Any]]
    max_length: int

    def inputs(self, windows: Sequence[Window]) -> dict[str, Any]:
        """Return a batch without the answers, for which the model computes no loss."""
        return {name: value for name, value in self.collate(windows).items() if name not in ANSWER}

    def evaluate(self, model: Any, phase: str) -> Evaluation:
        """Evaluate a model on all ranks, each with its share of the questions.

        Only the predicted answers are exchanged.

        Args:
            model: the model, not wrapped in DDP.
            phase: the name under which progress is reported.
        """
        began = time.perf_counter()
        data, training = self.config
        local_questions = self.questions[ranks.rank() :: ranks.world_size()]
        with ranks.raise_together():
            windows = make_windows(local_questions, self.tokenizer, max_length=self.max_length, stride=data.doc_stride)
        windows.sort(key=lambda window: window.length)

        def scores_of(batch: Sequence[Window]) -> Iterable[Scores]:
            output = model(**self.inputs(batch))
            return map(Scores, batch, output.start_logits.float().tolist(), output.end_logits.float().tolist())

        scores = score_in_batches(training, model, windows, scores_of, phase)
        by_question = grouped((window_scores.window.question, window_scores) for window_scores in scores)
        predicted = [predict(question, by_question.get(i, []), data) for i, question in enumerate(local_questions)]
        parts = ranks.gather(predicted)  # rank i % ranks has predicted question i
        predictions = {
            question.id: Prediction(*parts[index % len(parts)][index // len(parts)])
            for index, question in enumerate(self.questions)
        }
        seconds = time.perf_counter() - began
        figures = ranks.from_main(score(predictions, self.questions) if ranks.is_main() else None)
        return Evaluation(figures, len(self.questions) / seconds, predictions)


def predict(question: Question, scores: Sequence[Scores], data: QaArguments) -> Prediction:
    """Predict the answer to a question from the scores of its windows.

    "No answer" is always among the candidates if questions may have none, and is predicted if it leads the best text
    by more than the threshold.
    """
    candidates = [candidate for part in scores for candidate in window_candidates(question, part, data)]
    # "No answer in this window" has [CLS] as start and end.
    null = min((part.start[0] + part.end[0] for part in scores), default=0.0)
    if data.version_2_with_negative:
        candidates.append(("", null))
    unique: dict[str, float] = {}
    for text, value in sorted(candidates, key=itemgetter(1), reverse=True):
        unique.setdefault(text, value)
    best = dict(list(unique.items())[: data.n_best_size])
    if "" in unique or not best:
        best[""] = unique.get("", 0.0)
    text, value = next(((text, value) for text, value in best.items() if text), ("", 0.0))
    if data.version_2_with_negative and null - value > data.null_score_diff_threshold:
        text = ""
    probabilities = torch.tensor([*best.values()], dtype=torch.float64).softmax(dim=0).tolist()
    rows = zip(best.items(), probabilities, strict=True)
    return Prediction(text, [{"text": text, "probability": share, "score": value} for (text, value), share in rows])


def window_candidates(question: Question, part: Scores, data: QaArguments) -> list[tuple[str, float]]:
    """Return the spans between the best starts and ends of a window, with their scores."""
    # Only the tokens of the context have characters in it.
    characters = {index: offset for index, offset in enumerate(part.window.offsets) if offset is not None}
    best_first = (sorted(characters, key=values.__getitem__, reverse=True) for values in (part.start, part.end))
    starts, ends = (positions[: data.n_best_size] for positions in best_first)
    return [
        (question.context[characters[start][0] : characters[end][1]], part.start[start] + part.end[end])
        for start in starts
        for end in ends
        if start <= end < start + data.max_answer_length
    ]


def score(predictions: Mapping[str, Prediction], questions: Sequence[Question]) -> dict[str, float]:
    """Return exact match and F1 in percent as SQuAD defines them; each question needs a prediction."""
    from torchmetrics.functional.text import squad  # slow to import, and only rank 0 needs it

    # An unanswerable question expects the empty text.
    answers = {q.id: q.answers or (Answer(text="", start=0),) for q in questions}
    targets = [
        {"id": id_, "answers": {"text": [a.text for a in of_question], "answer_start": [a.start for a in of_question]}}
        for id_, of_question in answers.items()
    ]
    result = squad([{"prediction_text": predictions[id_].text, "id": id_} for id_ in answers], targets)
    return {"em": float(result["exact_match"]), "f1": float(result["f1"])}
