"""Load the questions to train on and to evaluate, from files or from the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from config import DataArguments
from orch_training.errors import RecipeError
from orch_training.models import hub_rows
from orch_training.ranks import note
from squad import BadFieldError, Node, Question, flat_question, read_questions, unique


def load_training(args: DataArguments) -> list[Question]:
    """Load the questions to train on."""
    questions = load(args, args.train_file, "train")
    if args.exclude_validation_ids:
        questions = excluding(questions, load(args, args.validation_file, "validation"))
    return questions[: args.max_train_samples]


def load_validation(args: DataArguments) -> list[Question]:
    """Load the questions to evaluate on."""
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
