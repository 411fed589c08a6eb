"""Errors that users can correct: what is wrong and what to do about it; cli/main.py catches them."""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError
    from typing_extensions import Self

ZEROS = re.compile("(?<![0-9])0+(?=[0-9])")  # that pad the numbers of hosts


@cache
def problems() -> dict[str, dict[str, str]]:
    """Return the message and the hint of each problem by its name."""
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return dict(tomllib.loads(Path(__file__).with_name("problems.toml").read_text(encoding="utf-8")))


class OrchError(Exception):
    """An error that the user can correct.

    Attributes:
        exit_code: 1 if the work failed, 2 if the request was wrong.
        default_hint: the hint of a class.
    """

    exit_code = 1
    default_hint = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint
        self.__notes__ = [f"hint: {self.hint}"] if self.hint else []  # Python 3.11 prints them in tracebacks

    @classmethod
    def about(cls, problem: str, /, **values: object) -> Self:
        """Return the error with the message and the hint of a problem in problems.toml, and with these values."""
        texts = problems()[problem]
        return cls(texts["message"].format(**values), hint=texts["hint"].format(**values))


class RequestError(OrchError):
    """An error in the request or in one of the user's files."""

    exit_code = 2


class PlanError(RequestError):
    """An error for a valid request that this cluster, stack or recipe cannot fulfil."""


class ExecuteError(OrchError):
    """An error for a step of a plan that failed."""


class ConnectionLost(ExecuteError):
    """An error for a node that cannot be reached; its processes may still be running."""

    default_hint = "Processes on the node keep running. Try again when it is reachable; `orch attach` follows a run."


def did_you_mean(name: str, valid_names: Iterable[str], *, listing: str = "") -> str:
    """Return a hint with the valid name that is most similar, or else with all of them.

    Args:
        name: the unknown name.
        valid_names: the names to choose from.
        listing: the hint if no name is similar and the names are too many to list.
    """
    names = sorted(valid_names)
    near = [valid for valid in names if ZEROS.sub("", valid) == ZEROS.sub("", name)]
    near = near or difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"Did you mean '{near[0]}'?"
    return listing or f"There are: {', '.join(names)}."


def describe_invalid(message: str) -> str:
    """Return pydantic's message about an invalid value without its phrases for developers."""
    reason = message.removeprefix("Value error, ").partition(", unable to parse")[0]
    reason = reason.replace("valid tuple", "valid list")
    phrases = {
        "Extra inputs are not permitted": "unknown key",
        "Unexpected keyword argument": "unknown key",
        "Field required": "is missing",
    }
    return phrases.get(reason, reason.replace("Input should be", "expected").replace("String should", "it should"))


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return the first key that is wrong, such as `limits.disk`, and why; the key is empty for the whole value."""
    first = error.errors(include_url=False)[0]
    return ".".join(map(str, first["loc"])), describe_invalid(first["msg"])
