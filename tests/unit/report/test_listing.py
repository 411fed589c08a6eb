"""Check how the findings of checks are printed."""

from __future__ import annotations

import json
import math

from orchestrator.model.decision import Finding
from orchestrator.report.listing import detail_lines, finding_lines, findings_json, number_text

LIBRARY = Finding(subject="a", message="no libmpi", evidence="could not open libmpi.so.12", hint="Source setvars.sh.")
FINE = Finding(subject="API", severity="ok", message="it responds")


def test_finding_has_its_severity_its_evidence_and_the_cure() -> None:
    assert finding_lines([FINE, LIBRARY]) == [
        "ok    API: it responds",
        "MISS  a: no libmpi",
        "      why: could not open libmpi.so.12",
        "      hint: Source setvars.sh.",
    ]
    details = detail_lines(LIBRARY, printed=f"error: {LIBRARY.evidence} here")
    assert details == ["no libmpi", "  hint: Source setvars.sh."]
    assert json.loads(findings_json("k8s check", [FINE]))["ready"]
    assert not json.loads(findings_json("k8s check", [FINE, LIBRARY]))["ready"]


def test_numbers_keep_the_digits_before_their_point() -> None:
    numbers = {20.0: "20", 0.93125: "0.9313", 1234567.0: "1234567", 65536.5: "65536", 4.2e-6: "4.2e-06"}
    assert {value: number_text(value, 4) for value in numbers} == numbers
    assert [number_text(value, 4) for value in (math.nan, math.inf)] == ["nan", "inf"]
