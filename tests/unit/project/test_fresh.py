"""Test the cases of `make fresh`, the arguments of their containers, and their results."""

from __future__ import annotations

import itertools

from tests.fresh.__main__ import container
from tests.fresh.cases import CASES, CHEAPEST
from tests.fresh.index import index_of
from tests.fresh.result import result_of, table

INDEX = index_of([":env:.cert='/etc/certificates.pem'", ":env:.find-links='/wheels-here'"])


def test_cases_cover_every_suite_user_and_build() -> None:
    covered = {(case.suite, case.user, case.build) for case in CASES.values()}
    expected = (("bookworm", "trixie"), ("root", "alice"), ("cpu", "default"))
    assert covered == set(itertools.product(*expected))
    for suite in expected[0]:
        cases = [case for case in CASES.values() if case.suite == suite]
        assert {case.folder for case in cases} == {"orch", "my orch"}
        assert {case.umask for case in cases} == {"022", "077"}
        assert any(case.locked_home for case in cases)
    assert CASES[CHEAPEST].build == "cpu"


def test_default_build_gets_no_wheels_and_does_not_reach_pytorchs_index() -> None:
    arguments = container("trixie-user-default", "image", INDEX)
    assert "download.pytorch.org:127.0.0.1" in arguments
    assert not any("wheels" in argument for argument in arguments)
    assert arguments[-6:] == ["/begin", "my orch", "022", "default", "demo", "test-unit"]


def test_cpu_build_can_use_wheels_of_this_machine() -> None:
    arguments = container("bookworm-user", "image", INDEX)
    assert {"/wheels-here:/wheels/0:ro", "PIP_FIND_LINKS=/wheels/0"} <= set(arguments)
    assert "PIP_CERT=/etc/ssl/certs/ca-certificates.crt" in arguments
    assert arguments[arguments.index("--user") + 1] == "alice"


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
