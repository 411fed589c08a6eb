"""Check that messages for users have a hint and use standard terms."""

from __future__ import annotations

import re

from tests.support.words import all_messages, errors_without_hint

ALL = all_messages()


def test_help_has_no_brackets_that_rich_takes_for_markup() -> None:
    """Avoid texts such as `[user@]`, which rich would not print."""
    help_texts = [word for word in ALL if word.path.startswith("orchestrator/cli") and "help" in word.kind]
    assert [word for word in help_texts if re.search(r"\[[a-z#/@][^\[]*?\]", word.text)] == []


def test_errors_and_hints_end_with_a_period() -> None:
    """Allow an error and a hint to be printed one after the other."""
    errors = [word for word in ALL if word.kind in ("RequestError", "PlanError", "ExecuteError")]
    open_ended = [word for word in errors if not word.text.endswith((".", "}", "?", ")"))]
    assert open_ended == []


INTERNAL_ERRORS = ("Expired",)  # caught by the watch that raises them, so that no user reads them


def test_errors_say_what_to_do() -> None:
    """Require a hint, a default hint of the error's class, or the expected value in the message."""
    assert len(ALL) > 600
    assert [error for error in errors_without_hint() if error.kind not in INTERNAL_ERRORS] == []
