"""The questions to train on and to evaluate, from files or from the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from config import DataArguments
from errors import RecipeError
from ranks import note
from squad import BadFieldError, Node, Question, flat_question, read_questions, unique


def load_training(args: DataArguments) -> list[Question]:
    questions = load(args, args.train_file, "train")
    if args.exclude_validation_ids:
        questions = excluding(questions, load(args, args.validation_file, "validation"))
    return questions[: args.max_train_samples]


def load_validation(args: DataArguments) -> list[Question]:
    return load(args, args.validation_file, "validation")[: args.max_eval_samples]


def load(args: DataArguments, path: str | None, split: str) -> list[Question]:
    if args.dataset_name is None:
        return read_questions(Path(str(path)), unanswerable=args.version_2_with_negative)
    return hub_questions(args, split)


def excluding(questions: Sequence[Question], others: Sequence[Question]) -> list[Question]:
    ids = {question.id for question in others}
    kept = [question for question in questions if question.id not in ids]
    note(
        f"{len(questions) - len(kept)} of {len(questions)} questions are left out of training: "
        "they are evaluated."
    )
    if not kept:
        raise RecipeError("no questions are left to train on: all are in the validation file.")
    return kept


def hub_questions(args: DataArguments, split: str) -> list[Question]:
    rows = hub_rows(args, split)
    name = f"{args.dataset_name} ({split})"
    questions = []
    for number, row in enumerate(rows, start=1):
        try:
            questions.append(flat_question(Node(row), args.version_2_with_negative))
        except BadFieldError as error:
            raise RecipeError(f"{name}, row {number}: {error}.") from error
    return unique(Path(name), ((None, question) for question in questions))


def hub_rows(args: DataArguments, split: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise RecipeError(
            "--dataset_name needs the package `datasets`; install it, or pass --train_file and "
            "--validation_file."
        ) from error
    try:
        return load_dataset(args.dataset_name, args.dataset_config_name, split=split)
    except Exception as error:  # network, name, split and script errors have no common class
        reason = str(error).splitlines()[0]
        raise RecipeError(f"cannot load the data set {args.dataset_name!r}: {reason}") from error
