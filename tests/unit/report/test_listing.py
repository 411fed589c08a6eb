"""Check how the findings of checks are printed."""

from __future__ import annotations

import json

from orchestrator.model.decision import Finding
from orchestrator.report.listing import detail_lines, finding_lines, findings_json

LIBRARY = Finding(subject="a", message="no libmpi", evidence="could not open libmpi.so.12", hint="Source setvars.sh.")
FINE = Finding(subject="API", severity="ok", message="it responds")


def test_finding_has_its_severity_its_evidence_and_the_cure() -> None:
    assert finding_lines([FINE, LIBRARY]) == [
        "ok    API: it responds",
        "MISS  a: no libmpi",
        "      why: could not open libmpi.so.12",
        "      hint: Source setvars.sh.",
    ]


def test_evidence_that_is_printed_already_is_left_out() -> None:
    printed = "error: could not open libmpi.so.12 here"
    assert detail_lines(LIBRARY, printed=printed) == ["no libmpi", "  hint: Source setvars.sh."]


def test_json_is_ready_unless_something_is_missing() -> None:
    assert json.loads(findings_json("k8s check", [FINE]))["ready"]
    value = json.loads(findings_json("k8s check", [FINE, LIBRARY]))
    assert (value["kind"], value["ready"]) == ("k8s check", False)
    assert value["findings"][0] == {"topic": "API", "state": "ok", "words": "it responds", "hint": ""}
