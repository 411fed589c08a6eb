"""Expected errors: what is wrong, and what to do about it. cli/main.py catches them once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OrchError(Exception):
    """An error that the user can mend. `exit_code`: 1 the work failed, 2 asked wrong; `advice`:
    the hint of all errors of a kind that have none of their own."""

    exit_code = 1
    advice = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.advice


class RequestError(OrchError):
    """The request or a file of the user's cannot be right."""

    exit_code = 2


class PlanError(RequestError):
    """The request is well formed, but this cluster, stack or recipe cannot do it."""


class ExecuteError(OrchError):
    """A step of a plan failed."""


class ConnectionLost(ExecuteError):
    """A node cannot be reached, or not any more; what runs there may live on."""

    advice = "What runs there goes on. Try again when it can be reached; `orch attach` follows a run."


def did_you_mean(name: str, known: Iterable[str], *, listing: str = "") -> str:
    """Return a hint with the known name that is most similar, or else with all of them.

    Args:
        name: The unknown name.
        known: The known names.
        listing: What the hint says instead if no name is similar; for many names.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"Did you mean '{near[0]}'?"
    return listing or f"There are: {', '.join(names)}."
