"""Load questions: from nested SQuAD v1.1/v2 JSON, from flat rows as JSON or JSON lines, or from the hub.

Reading is strict: an invalid field is an error with the file, the line and the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from json.decoder import JSONObject, scanstring  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from config import DataArguments
from orch_training import RecipeError
from orch_training.models import hub_rows
from orch_training.ranks import note

Step = str | int


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


class BadFieldError(Exception):
    """An invalid field, with its path in the document."""

    def __init__(self, path: tuple[Step, ...], problem: str) -> None:
        super().__init__(f"{field_name(path)}: {problem}" if path else problem)
        self.path = path


@dataclass(frozen=True, slots=True)
class Node:
    """A JSON value with its path in the document, for error messages."""

    value: Any
    path: tuple[Step, ...] = ()

    def get(self, name: str) -> Node:
        """Return a field of an object.

        Raises:
            BadFieldError: if this is not an object, or has no such field.
        """
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        if name not in self.value:
            raise BadFieldError((*self.path, name), "is missing")
        return Node(self.value[name], (*self.path, name))

    def has(self, name: str) -> bool:
        """Return whether this is an object with this field."""
        return isinstance(self.value, dict) and name in self.value

    def items(self) -> list[Node]:
        """Return the items of a list.

        Raises:
            BadFieldError: if this is not a list.
        """
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return [Node(value, (*self.path, index)) for index, value in enumerate(self.value)]

    def text(self) -> str:
        """Return a text that is not empty.

        Raises:
            BadFieldError: if this is not a text, or is empty.
        """
        if not isinstance(self.value, str):
            raise self.wrong("a text")
        if not self.value.strip():
            raise BadFieldError(self.path, "is empty")
        return self.value

    def number(self) -> int:
        """Return an integer.

        Raises:
            BadFieldError: if this is not an integer.
        """
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self.wrong("a whole number")
        return self.value

    def wrong(self, expected: str) -> BadFieldError:
        """Return the error that this is not of the expected type."""
        shown = json.dumps(self.value, ensure_ascii=False)
        shown = shown if len(shown) <= 40 else shown[:40] + "..."
        return BadFieldError(self.path, f"must be {expected}, found {shown}")


def load_training(args: DataArguments) -> list[Question]:
    questions = load(args, args.train_file, "train")
    if args.exclude_validation_ids:
        questions = excluding(questions, load(args, args.validation_file, "validation"))
    return questions[: args.max_train_samples]


def load_validation(args: DataArguments) -> list[Question]:
    return load(args, args.validation_file, "validation")[: args.max_eval_samples]


def load(args: DataArguments, path: str | None, split: str) -> list[Question]:
    """Load the questions of a split from the hub or from a file."""
    if args.dataset_name is None:
        return read_questions(Path(str(path)), unanswerable=args.version_2_with_negative)
    return hub_questions(args, split)


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


def hub_questions(args: DataArguments, split: str) -> list[Question]:
    """Load the questions of a split from the hub.

    Raises:
        RecipeError: if a row has an invalid field.
    """
    rows = hub_rows(str(args.dataset_name), args.dataset_config_name, split)
    name = f"{args.dataset_name} ({split})"
    questions = []
    for number, row in enumerate(rows, start=1):
        try:
            questions.append(flat_question(Node(row), args.version_2_with_negative))
        except BadFieldError as error:
            raise RecipeError(f"{name}, row {number}: {error}.") from error
    return unique(Path(name), ((None, question) for question in questions))


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
    text = read_text(path)
    if path.suffix == ".jsonl":
        return unique(path, located_rows(path, text, unanswerable))
    return unique(path, ((None, question) for question in read_document(path, text, unanswerable)))


def read_text(path: Path) -> str:
    """Read a UTF-8 file.

    Raises:
        RecipeError: if it cannot be read or is not UTF-8.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RecipeError(f"cannot read {path}: {error.strerror}.") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"{path}, line {line}: this is not UTF-8 text.") from error


def located_rows(path: Path, text: str, unanswerable: bool) -> Iterator[tuple[int, Question]]:
    """Yield the questions of JSON lines with their line numbers.

    Raises:
        RecipeError: if a line is not valid JSON or has an invalid field.
    """
    # splitlines() would also split at U+2028 and similar characters, which JSON texts may contain
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, flat_question(Node(json.loads(line)), unanswerable)
        except json.JSONDecodeError as error:
            raise RecipeError(f"{path}, line {number}: not valid JSON: {error.msg}.") from error
        except BadFieldError as error:
            raise RecipeError(f"{path}, line {number}: {error}.") from error


def read_document(path: Path, text: str, unanswerable: bool) -> list[Question]:
    """Return the questions of a JSON document.

    Raises:
        RecipeError: if it is not valid JSON or has an invalid field.
    """
    try:
        return document_questions(Node(json.loads(text)), unanswerable)
    except json.JSONDecodeError as error:
        hint = "; a file with a row on each line must end in .jsonl" if error.msg == "Extra data" else ""
        raise RecipeError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}{hint}.") from error
    except BadFieldError as error:
        line = line_of(text, error.path)
        raise RecipeError(f"{path}, line {line}: {error}.") from error


def document_questions(root: Node, unanswerable: bool) -> list[Question]:
    """Return the questions of nested articles or flat rows below "data"; rows may be the document."""
    records = (root if isinstance(root.value, list) else root.get("data")).items()
    if not any(record.has("paragraphs") for record in records):
        return [flat_question(record, unanswerable) for record in records]
    return [question for record in records for question in article_questions(record, unanswerable)]


def article_questions(article: Node, unanswerable: bool) -> Iterator[Question]:
    for paragraph in article.get("paragraphs").items():
        context = paragraph.get("context").text()
        for qa in paragraph.get("qas").items():
            yield nested_question(qa, context, unanswerable)


def nested_question(qa: Node, context: str, unanswerable: bool) -> Question:
    checked_answers = [
        checked_answer(context, entry.get("text"), entry.get("answer_start")) for entry in qa.get("answers").items()
    ]
    return made_question(qa, context, checked_answers, unanswerable)


def flat_question(row: Node, unanswerable: bool) -> Question:
    """Read a row of the `datasets` library: answers = {text: [...], answer_start: [...]}."""
    context = row.get("context").text()
    texts, starts = (row.get("answers").get(name).items() for name in ("text", "answer_start"))
    if len(texts) != len(starts):
        raise BadFieldError((*row.path, "answers"), f"has {len(texts)} texts but {len(starts)} answer_start values")
    checked_answers = [checked_answer(context, *entry) for entry in zip(texts, starts, strict=True)]
    return made_question(row, context, checked_answers, unanswerable)


def made_question(record: Node, context: str, answers: list[Answer], unanswerable: bool) -> Question:
    """Return a question with checked answers.

    Raises:
        BadFieldError: if a field is invalid, or an answer is required but missing.
    """
    if not answers and not unanswerable:
        raise BadFieldError(
            (*record.path, "answers"), "is empty; pass --version_2_with_negative if questions may have no answer"
        )
    return Question(
        id=record.get("id").text(), question=record.get("question").text(), context=context, answers=tuple(answers)
    )


def checked_answer(context: str, text: Node, start: Node) -> Answer:
    """Return an answer, which must occur in the context at its start.

    A misplaced answer would silently become a wrong label.

    Raises:
        BadFieldError: if the context has another text there.
    """
    expected_text, position = text.text(), start.number()
    if position < 0 or context[position : position + len(expected_text)] != expected_text:
        actual_text = context[max(position, 0) : max(position, 0) + len(expected_text)]
        raise BadFieldError(start.path, f"at {position} the context reads {actual_text!r}, not {expected_text!r}")
    return Answer(text=expected_text, start=position)


def unique(path: Path, located: Iterable[tuple[int | None, Question]]) -> list[Question]:
    """Return the questions; their ids must be unique.

    Raises:
        RecipeError: if an id occurs twice, or there are no questions.
    """
    questions: dict[str, Question] = {}
    for line, question in located:
        if question.id in questions:
            location = f"{path}, line {line}" if line else str(path)
            raise RecipeError(f"{location}: the id {question.id!r} occurs twice.")
        questions[question.id] = question
    if not questions:
        raise RecipeError(f"{path} holds no questions.")
    return list(questions.values())


def field_name(path: tuple[Step, ...]) -> str:
    """Return a path such as ("data", 0, "id") as text: data[0].id."""
    name = ""
    for step in path:
        name += f"[{step}]" if isinstance(step, int) else f".{step}" if name else step
    return name


class _Located(dict):  # type: ignore[type-arg]
    """A JSON object with the position in the text where it begins."""

    at = 0


def line_of(text: str, path: tuple[Step, ...]) -> int:
    """Return the line on which the innermost object on the path begins (1 for the document).

    Parse the text a second time in Python to record where objects begin. This is slow and only
    happens for an error message.
    """
    value: Any = _parse_located(text)
    position = 0
    for step in path:
        position = getattr(value, "at", position)
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):  # the field is missing
            break
    position = getattr(value, "at", position)
    return text.count("\n", 0, position) + 1


def _parse_located(text: str) -> Any:
    """Parse JSON into objects with their positions in the text."""
    decoder = json.JSONDecoder()

    def parse_object(state: tuple[str, int], *parser_arguments: Any) -> tuple[_Located, int]:
        value, end = JSONObject(state, *parser_arguments)
        located = _Located(value)
        located.at = state[1] - 1
        return located, end

    decoder.parse_object = parse_object
    decoder.parse_string = scanstring
    decoder.scan_once = py_make_scanner(decoder)
    return decoder.decode(text)
