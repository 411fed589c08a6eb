"""Load questions: from nested SQuAD v1.1/v2 JSON, from flat rows as JSON or JSON lines, or from the hub.

Reading is strict: an invalid field is an error with the file, the line or the row, and the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config import QaArguments
from orch_training import RecipeError
from orch_training.models import hub_rows
from orch_training.ranks import note

KINDS = {str: "a text", int: "a whole number", list: "a list"}


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
    questions = load(args, args.train_file, "train")
    if args.exclude_validation_ids:
        questions = excluding(questions, load(args, args.validation_file, "validation"))
    return questions[: args.max_train_samples]


def load_validation(args: QaArguments) -> list[Question]:
    return load(args, args.validation_file, "validation")[: args.max_eval_samples]


def load(args: QaArguments, path: str | None, split: str) -> list[Question]:
    """Load the questions of a split from the hub or from a file."""
    if args.dataset_name is None:
        return read_questions(Path(str(path)), unanswerable=args.version_2_with_negative)
    name = f"{args.dataset_name} ({split})"
    rows = enumerate(hub_rows(args.dataset_name, args.dataset_config_name, split), start=1)
    return unique(
        name, (made_question(f"{name}, row {number}: ", row, args.version_2_with_negative) for number, row in rows)
    )


def excluding(questions: Sequence[Question], excluded: Sequence[Question]) -> list[Question]:
    """Return the questions that are not excluded.

    Raises:
        RecipeError: if none remains.
    """
    ids = {question.id for question in excluded}
    remaining = [question for question in questions if question.id not in ids]
    if excluded_count := len(questions) - len(remaining):
        note(f"{excluded_count} of {len(questions)} questions are left out of training: they are evaluated.")
    if not remaining:
        raise RecipeError("no questions are left to train on: all are in the validation file.")
    return remaining


def read_questions(path: Path, *, unanswerable: bool) -> list[Question]:
    """Read all questions of a .json or .jsonl file.

    Args:
        path: the file.
        unanswerable: whether questions may have no answer.

    Raises:
        RecipeError: if the file cannot be read, or a field is invalid.
    """
    read_records = {".json": document_records, ".jsonl": line_records}.get(path.suffix)
    if read_records is None:
        raise RecipeError(f"{path}: data files end in .json or .jsonl.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: {error}.") from error
    records = read_records(path, text)
    return unique(str(path), (made_question(location, record, unanswerable) for location, record in records))


def line_records(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the records of JSON lines, each with its location for messages.

    Raises:
        RecipeError: if a line is not valid JSON.
    """
    # splitlines() would also split at U+2028 and similar characters, which JSON texts may contain
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield f"{path}, line {number}: ", json.loads(line)
            except json.JSONDecodeError as error:
                raise RecipeError(f"{path}, line {number}: not valid JSON: {error.msg}.") from error


def document_records(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the records of nested articles or flat rows below "data", each with its location; rows may be the document.

    Raises:
        RecipeError: if it is not valid JSON.
    """
    try:
        root = json.loads(text)
    except json.JSONDecodeError as error:
        hint = "; a file with a row on each line must end in .jsonl" if error.msg == "Extra data" else ""
        raise RecipeError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}{hint}.") from error
    name, entries = ("", root) if isinstance(root, list) else ("data", field(f"{path}: ", root, "data", list))
    is_nested = any(isinstance(entry, dict) and "paragraphs" in entry for entry in entries)
    for index, entry in enumerate(entries):
        location = f"{path}: {name}[{index}]."
        yield from article_records(location, entry) if is_nested else [(location, entry)]


def article_records(location: str, article: Any) -> Iterator[tuple[str, Any]]:
    """Yield the questions of an article with their contexts."""
    for index, paragraph in enumerate(field(location, article, "paragraphs", list)):
        inside = f"{location}paragraphs[{index}]."
        context = field(inside, paragraph, "context", str)
        for number, qa in enumerate(field(inside, paragraph, "qas", list)):
            yield f"{inside}qas[{number}].", {**qa, "context": context} if isinstance(qa, dict) else qa


def made_question(location: str, record: Any, unanswerable: bool) -> Question:
    """Return a question with checked answers.

    Raises:
        RecipeError: if a field is invalid, or an answer is required but missing.
    """
    id_, question, context = (field(location, record, name, str) for name in ("id", "question", "context"))
    columns = record.get("answers")
    if isinstance(columns, dict):  # the `datasets` library has {text: [...], answer_start: [...]}
        texts, starts = (field(f"{location}answers.", columns, name, list) for name in ("text", "answer_start"))
        if len(texts) != len(starts):
            raise RecipeError(f"{location}answers: {len(texts)} texts, but {len(starts)} answer_start values.")
        entries = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    else:
        entries = field(location, record, "answers", list)
    checked = tuple(
        checked_answer(f"{location}answers[{index}].", entry, context) for index, entry in enumerate(entries)
    )
    if not checked and not unanswerable:
        raise RecipeError(
            f"{location}answers: is empty; pass --version_2_with_negative if questions may have no answer."
        )
    return Question(id=id_, question=question, context=context, answers=checked)


def checked_answer(location: str, entry: Any, context: str) -> Answer:
    """Return an answer, which must occur in the context at its start.

    A misplaced answer would silently become a wrong label.

    Raises:
        RecipeError: if the context has another text there.
    """
    text, start = field(location, entry, "text", str), field(location, entry, "answer_start", int)
    if start < 0 or not context.startswith(text, start):
        actual_text = context[max(start, 0) : max(start, 0) + len(text)]
        raise RecipeError(f"{location}answer_start: at {start} the context reads {actual_text!r}, not {text!r}.")
    return Answer(text=text, start=start)


def field(location: str, record: Any, name: str, kind: type) -> Any:
    """Return a field of a record, of type `kind`; texts are not empty.

    Raises:
        RecipeError: if the record has no such field.
    """
    if not isinstance(record, dict) or name not in record:
        raise RecipeError(f"{location}{name}: is missing.")
    value = record[name]
    if type(value) is not kind:
        raise RecipeError(f"{location}{name}: must be {KINDS[kind]}, found {json.dumps(value, default=repr):.40}.")
    if kind is str and not value.strip():
        raise RecipeError(f"{location}{name}: is empty.")
    return value


def unique(source: str, loaded: Iterator[Question]) -> list[Question]:
    """Return the questions; their ids must be unique.

    Raises:
        RecipeError: if an id occurs twice, or there are no questions.
    """
    questions: dict[str, Question] = {}
    for question in loaded:
        if question.id in questions:
            raise RecipeError(f"{source}: the id {question.id!r} occurs twice.")
        questions[question.id] = question
    if not questions:
        raise RecipeError(f"{source} holds no questions.")
    return list(questions.values())
