"""Load questions, and cut them with their contexts into overlapping windows that fit the model.

Questions are nested SQuAD v1.1/v2 JSON, flat rows as JSON or JSON lines, or on the hub. Reading is strict: an invalid
field is an error with the file, the line or the row, and the question.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from config import QaArguments
from orch_training import RecipeError, describe
from orch_training.models import hub_rows
from orch_training.ranks import note

Offset = tuple[int, int]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")  # not all tokenizers return the last
ANSWER = ("start_positions", "end_positions")
CHUNK = 1000  # questions per call of the tokenizer; limits memory and does not change the result
LISTS = ("data", "paragraphs", "qas")  # the lists that nest in SQuAD's files


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer that begins at character `start` of the context."""

    text: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about a context, with its expected answers."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]


def load_training(args: QaArguments) -> list[Question]:
    """Load the questions to train on.

    Raises:
        RecipeError: if none remains without those of the evaluation.
    """
    questions = load(args, args.train_file, "train")
    if args.exclude_validation_ids:
        excluded = {question.id for question in load(args, args.validation_file, "validation")}
        remaining = [question for question in questions if question.id not in excluded]
        if excluded_count := len(questions) - len(remaining):
            note(f"{excluded_count} of {len(questions)} questions are left out of training: they are evaluated.")
        if not remaining:
            raise RecipeError("no questions are left to train on: all are in the validation file.")
        questions = remaining
    return questions[: args.max_train_samples]


def load_validation(args: QaArguments) -> list[Question]:
    return load(args, args.validation_file, "validation")[: args.max_eval_samples]


def load(args: QaArguments, path: str | None, split: str) -> list[Question]:
    """Load the questions of a split from the hub or from a file."""
    if args.dataset_name is None:
        return read_questions(Path(str(path)), unanswerable=args.version_2_with_negative)
    name = f"{args.dataset_name} ({split})"
    rows = enumerate(hub_rows(args.dataset_name, args.dataset_config_name, split), start=1)
    return checked(name, ((f"{name}, row {number}", row) for number, row in rows), args.version_2_with_negative)


def read_questions(path: Path, *, unanswerable: bool) -> list[Question]:
    """Read all questions of a .json or .jsonl file.

    Args:
        path: the file.
        unanswerable: whether questions may have no answer.

    Raises:
        RecipeError: if the file cannot be read, or a field is invalid.
    """
    if path.suffix not in (".json", ".jsonl"):
        raise RecipeError(f"{path}: data files end in .json or .jsonl.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: {error}.") from error
    return checked(str(path), file_records(path, text), unanswerable)


def file_records(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the records of a file, each with its location for messages.

    Raises:
        RecipeError: if the text is not valid JSON.
    """
    is_lines = path.suffix == ".jsonl"
    # splitlines() would also split at U+2028 and similar characters, which JSON texts may contain
    for number, part in enumerate(text.split("\n") if is_lines else [text], start=1):
        if part.strip():
            try:
                value = json.loads(part)
            except json.JSONDecodeError as error:
                hint = "; a file with a row on each line must end in .jsonl" if error.msg == "Extra data" else ""
                line = number + error.lineno - 1
                raise RecipeError(f"{path}, line {line}: not valid JSON: {error.msg}{hint}.") from error
            yield from records_in(value, f"{path}, line {number}" if is_lines else str(path), {})


def records_in(value: Any, location: str, context: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the records in nested articles or in rows, each with its location and the context of its paragraph."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from records_in(item, f"{location}[{index}]", context)
    elif isinstance(value, dict) and "question" not in value and (name := next((n for n in LISTS if n in value), None)):
        shared = {"context": value["context"]} if "context" in value else {}
        yield from records_in(value[name], f"{location}, {name}", shared)
    else:
        yield location, {**value, **context} if isinstance(value, dict) else value


def checked(source: str, records: Iterable[tuple[str, Any]], unanswerable: bool) -> list[Question]:
    """Return the questions in records; their ids must be unique.

    Raises:
        RecipeError: if a field is invalid or missing, an id occurs twice, or there are no questions.
    """
    questions: dict[str, Question] = {}
    for location, record in records:
        try:
            question = made_question(record)
        except KeyError as error:
            raise RecipeError(f"{location}: {error} is missing.") from error
        except TypeError as error:
            raise RecipeError(describe("not-squad", location=location, error=error)) from error
        except ValueError as error:
            raise RecipeError(f"{location}: {error}.") from error
        if not question.answers and not unanswerable:
            hint = "pass --version_2_with_negative if questions may have no answer"
            raise RecipeError(f"{location}: 'answers' is empty; {hint}.")
        if question.id in questions:
            raise RecipeError(f"{source}: the id {question.id!r} occurs twice.")
        questions[question.id] = question
    if not questions:
        raise RecipeError(f"{source} holds no questions.")
    return list(questions.values())


def made_question(record: Any) -> Question:
    """Return the question in a record.

    Raises:
        KeyError: if a field is missing.
        TypeError, ValueError: if a field is invalid.
    """
    texts = {name: record[name] for name in ("id", "question", "context")}
    for name, value in texts.items():
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{name!r} is {value!r:.40}, not a text")
    columns = record["answers"]
    if isinstance(columns, list):  # the `datasets` library has {text: [...], answer_start: [...]}
        columns = {name: [answer[name] for answer in columns] for name in ("text", "answer_start")}
    entries = zip_longest(columns["text"], columns["answer_start"])
    answers = tuple(Answer(text=text, start=start) for text, start in entries)
    for answer in answers:
        if not isinstance(answer.text, str) or not isinstance(answer.start, int):
            raise ValueError(f"the answer {answer.text!r:.40} at {answer.start!r} is not a text at a whole number")
        # A misplaced answer would silently become a wrong label.
        if not answer.text.strip() or answer.start < 0 or not texts["context"].startswith(answer.text, answer.start):
            raise ValueError(f"the context does not have the answer {answer.text!r} at {answer.start!r}")
    return Question(**texts, answers=answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """An input of the model: [CLS] question [SEP] part of the context [SEP].

    Attributes:
        question: the index of the question.
        inputs: what the model gets: INPUTS, and the first and last token of the first answer; both are 0 ([CLS])
            unless the window has all of it.
        offsets: for each token of the context, its first character and one past its last, else
            None.
    """

    question: int
    inputs: dict[str, Any]
    offsets: list[Offset | None]

    @property
    def length(self) -> int:
        return len(self.offsets)


def make_windows(questions: Sequence[Question], tokenizer: Any, *, max_length: int, stride: int) -> list[Window]:
    """Cut questions into windows.

    Args:
        questions: the questions with their contexts.
        tokenizer: the tokenizer of the model.
        max_length: the tokens of a window.
        stride: the tokens of context that two neighbouring windows share.

    Raises:
        RecipeError: if a question leaves no room for context.
    """
    windows: list[Window] = []
    for first in range(0, len(questions), CHUNK):
        chunk = questions[first : first + CHUNK]
        check_room(chunk, tokenizer, max_length=max_length, stride=stride)
        encoded = tokenizer(
            [question.question.strip() for question in chunk],
            [question.context for question in chunk],
            truncation="only_second",
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        texts = [question.answers[0].text if question.answers else "" for question in chunk]
        answer_offsets = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        for row, index in enumerate(encoded["overflow_to_sample_mapping"]):
            parts = zip(encoded["offset_mapping"][row], encoded.sequence_ids(row), strict=True)
            offsets = [tuple(offset) if part == 1 else None for offset, part in parts]
            labels = dict(zip(ANSWER, answer_tokens(offsets, chunk[index], answer_offsets[index]), strict=True))
            inputs = {name: encoded[name][row] for name in INPUTS if name in encoded}
            windows.append(Window(question=first + index, inputs={**inputs, **labels}, offsets=offsets))
    return windows


def check_room(questions: Sequence[Question], tokenizer: Any, *, max_length: int, stride: int) -> None:
    """Check that each question leaves room for more context than the stride.

    Raises:
        RecipeError: if a question is too long for the tokenizer to cut its context.
    """
    room = max_length - stride - tokenizer.num_special_tokens_to_add(pair=True)
    texts = [question.question.strip() for question in questions]
    for question, ids in zip(questions, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True):
        if len(ids) >= room:
            numbers = {"tokens": len(ids), "length": max_length, "stride": stride, "room": max(room - 1, 0)}
            raise RecipeError(describe("long-question", question=question, **numbers))


def answer_tokens(
    offsets: Sequence[Offset | None], question: Question, answer_offsets: Sequence[Offset]
) -> tuple[int, int]:
    """Return the first and last token of the first answer, or (0, 0) unless all of it is inside.

    Args:
        offsets: those of a window.
        question: the question.
        answer_offsets: those of the answer alone, without white space at its ends and what the tokenizer drops.
    """
    inside = [offset for offset in answer_offsets if question.answers[0].text[slice(*offset)].strip()]
    if not inside:
        return 0, 0
    first, last = (question.answers[0].start + position for position in (inside[0][0], inside[-1][1]))
    start = max((i for i, o in enumerate(offsets) if o and o[0] <= first < o[1]), default=None)
    end = min((i for i, o in enumerate(offsets) if o and o[0] < last <= o[1]), default=None)
    return (0, 0) if start is None or end is None else (start, end)
