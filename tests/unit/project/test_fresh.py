"""Read the results of `make fresh`: a failed case must not pass."""

from __future__ import annotations

from tests.fresh.cases import CASES
from tests.fresh.result import result_of, table

DONE = """fresh: step demo 0 300
something: else
fresh: step test-unit 0 60
fresh: figures {"train_seconds": 50, "train_samples_per_second": 19.7, \
"before": {"em": 1.1, "f1": 5.4}, "after": {"em": 84.1, "f1": 88.7}}
fresh: torch 2.13.0+cpu
"""


def test_passed_case_is_a_row_of_the_table() -> None:
    row = result_of(0, DONE).row("bookworm-user")
    assert row == ("bookworm-user", "passed", "2.13.0+cpu", "5.0 min", "1.0 min", "50 s", "19.7", "84.1", "88.7")
    assert table({"bookworm-user": result_of(0, DONE)}).splitlines()[2] == f"| {' | '.join(row)} |"


def test_failed_case_has_a_reason() -> None:
    for name, code, text, verdict in (
        ("bookworm-user", 2, "fresh: step demo 2 9\n", "FAILED: make demo ended with 2"),
        ("bookworm-user", 125, "docker: no space left\n", "FAILED: ended with 125"),
        ("bookworm-user", 0, "", "FAILED: ended with 0"),  # no output
        ("bookworm-user-default", 0, DONE, "FAILED: not the default build"),  # wrong build
        ("bookworm-user", 0, DONE.replace("88.7", "5.4"), "FAILED: the training has not improved F1"),  # same score
        ("trixie-user", 0, "fresh: missing ERROR: none\n", "NOT AVAILABLE HERE: ERROR: none"),  # no package index
    ):
        assert result_of(code, text).verdict(CASES[name]) == verdict
