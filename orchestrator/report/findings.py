"""The findings of checks, as text and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from orchestrator.model.finding import Finding
from orchestrator.report.listing import SCHEMA
from orchestrator.runs.tracebacks import LONGEST_LINE

MARKS = {"ok": "ok  ", "miss": "MISS", "absent": "-   ", "unknown": "?   "}


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """Return all findings as text; those that differ only in their subjects are merged."""
    subjects: dict[Finding, list[str]] = {}
    for finding in findings:
        subjects.setdefault(replace(finding, subject=""), []).append(finding.subject)
    return [
        line
        for finding, names in subjects.items()
        for line in detail_lines(finding, f"{MARKS[finding.severity]}  {', '.join(names)}: ", indent=6)
    ]


def detail_lines(finding: Finding, head: str = "", *, indent: int = 2, printed: str = "") -> list[str]:
    """Return what is wrong, the evidence unless it is part of the printed text, and the cure."""
    is_printed = finding.evidence[:LONGEST_LINE] in printed
    evidence = [] if is_printed else [f"{'':{indent}}why: {finding.evidence}"]
    text = finding.cure.replace("\n", f"\n{'':{indent + 2}}")
    cure = [f"{'':{indent}}cure: {text}"] if finding.cure else []
    return [f"{head}{finding.message}", *evidence, *cure]


def as_json(kind: str, findings: Sequence[Finding]) -> str:
    """Return the findings of a check as JSON."""
    records = [
        {"topic": finding.subject, "state": finding.severity, "words": finding.message, "cure": finding.cure}
        for finding in findings
    ]
    ready = all(finding.severity != "miss" for finding in findings)
    return json.dumps({"schema": SCHEMA, "kind": kind, "ready": ready, "findings": records}, indent=1)
