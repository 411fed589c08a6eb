"""The texts for users have the field's words, and say what to do."""

from __future__ import annotations

import re

from orchestrator.errors import ConnectionLost, ExecuteError
from tests.words import every, unhelpful

ALL = every()
# What DESIGN.md's words stand in the place of, and words that blame or beg.
WRONG = re.compile(r"\b(warden|sweep|swept|whereabouts|story|please|oops|simply|just|obviously)\b", re.IGNORECASE)
QUOTED = re.compile(r"'[^']*'")  # words of other programs
HELP = [word for word in ALL if word.kind in ("Option.help", "Argument.help", "Typer.help")]


def test_the_list_is_whole() -> None:
    assert len(ALL) > 600
    assert {"RequestError", "PlanError.hint", "Option.help", "Decision.reason"} <= {word.kind for word in ALL}


def test_no_text_has_a_wrong_word() -> None:
    assert [word for word in ALL if WRONG.search(QUOTED.sub("", word.text))] == []


def test_help_is_a_sentence_or_two() -> None:
    assert [word for word in HELP if not word.text.endswith((".", ")"))] == []
    assert [word for word in HELP if len(word.text) > 260] == []


def test_help_has_no_brackets_that_rich_takes_for_markup() -> None:
    """`[user@]` would not be printed."""
    told = [word for word in ALL if word.path.startswith("orchestrator/cli") and "help" in word.kind]
    assert [word for word in told if re.search(r"\[[a-z#/@][^\[]*?\]", word.text)] == []


def test_errors_end_in_a_point_and_hints_too() -> None:
    """So that they can stand beside each other."""
    errors = [word for word in ALL if word.kind in ("RequestError", "PlanError", "ExecuteError")]
    open_ended = [word for word in errors if not word.text.endswith((".", "}", "?", ")"))]
    assert open_ended == []


NO_HINT = {"Expired": "caught where a watch goes on: nobody reads it"}


def test_errors_say_what_to_do() -> None:
    """By a hint, their kind's advice, or what they tell to write."""
    told = [f"{one.kind}: {one.text}" for one in unhelpful()]
    assert [one for one in told if not any(known in one for known in NO_HINT)] == []
    assert len(told) == 2


def test_an_error_without_a_hint_has_that_of_its_kind() -> None:
    assert ConnectionLost("node1: no answer.").hint == ConnectionLost.advice
    assert ConnectionLost("node1: no answer.", hint="Wait.").hint == "Wait."
    assert ExecuteError("it failed").hint == ""
