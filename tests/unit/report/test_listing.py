"""Check how findings of checks and the results of a stop are printed."""

from __future__ import annotations

import json
import math

from orchestrator.model.decision import Finding
from orchestrator.report import cleanup
from orchestrator.report.listing import detail_lines, finding_lines, findings_json, number_text
from orchestrator.runs.outcome import CleanupReport, NodeCleanup

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


def test_many_nodes_with_the_same_result_are_one_row() -> None:
    nodes = [
        NodeCleanup(node=f"node{index}", state="clean", ended=("wrapper 1 (python)",), left=(), segments=(), problem="")
        for index in range(1000)
    ]
    assert "nothing was running" in cleanup.text(CleanupReport(run_id="x", seconds=0.1, nodes=()))
    nodes[4] = NodeCleanup(node="node4", state="unreachable", ended=(), left=(), segments=(), problem="timed out")
    report = CleanupReport(run_id="x", seconds=2.0, nodes=tuple(nodes))
    _, *rows, _ = cleanup.text(report).splitlines()
    assert [row.split()[:3] for row in rows] == [["node[0-3,5-999]", "clean", "1"], ["node4", "unreachable", "0"]]
    message = cleanup.describe_stop(report, before="running", after="stopped")
    assert message == "Run x is not stopped on node4 (unreachable)."
