"""Rows and the findings of checks, as text for people or as one JSON object for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from orchestrator.model.decision import Finding
from orchestrator.model.hosts import fold, grouped
from orchestrator.model.printable import one_line
from orchestrator.runs.tracebacks import LONGEST_LINE

SCHEMA = 1
MARKS = {"ok": "ok  ", "miss": "MISS", "absent": "-   ", "unknown": "?   "}


def json_text(kind: str, fields: Mapping[str, Any] | None = None, /, **more: Any) -> str:
    """Return the fields as one JSON object of a kind; dataclasses among the values become objects."""
    return json.dumps({"schema": SCHEMA, "kind": kind, **(fields or {}), **more}, indent=1, default=asdict)


def finite(value: Any, digits: int = 17) -> Any:
    """Return the value with NaN and infinities, which JSON cannot represent, replaced by None.

    Args:
        value: a value of JSON.
        digits: significant digits to which floats are rounded; 17 keep them as they are.
    """
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item, digits) for key, item in value.items()}
    return [finite(item, digits) for item in value] if isinstance(value, (list, tuple)) else value


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return the rows as columns of plain text that `cut` and `awk` can read."""
    if not rows:
        return "none"
    cells = [[column.upper() for column in columns]]
    cells += [[cell(row[column]) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    padded = ("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in padded)


def cell(value: object) -> str:
    """Return the value as one line without the control characters that a terminal would interpret; None is empty."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    return one_line(", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))


def number_text(value: float, digits: int) -> str:
    """Return a number with this many significant digits, or with all digits before its point if they are more."""
    return f"{value:.{min(15, max(digits, len(f'{abs(value):.0f}')))}g}"


def finding_lines(findings: Iterable[Finding]) -> list[str]:
    """Return all findings as text; those that differ only in their subjects are merged."""
    subjects = grouped((replace(finding, subject=""), finding.subject) for finding in findings)
    return [
        line
        for finding, names in subjects.items()
        for line in detail_lines(finding, f"{MARKS[finding.severity]}  {fold(names)}: ", indent=6)
    ]


def detail_lines(finding: Finding, head: str = "", *, indent: int = 2, printed: str = "") -> list[str]:
    """Return what is wrong, the evidence unless it is part of the printed text, and the hint."""
    is_printed = finding.evidence[:LONGEST_LINE] in printed
    evidence = [] if is_printed else [f"{'':{indent}}why: {finding.evidence}"]
    text = finding.hint.replace("\n", f"\n{'':{indent + 2}}")
    hint = [f"{'':{indent}}hint: {text}"] if finding.hint else []
    return [f"{head}{finding.message}", *evidence, *hint]


def findings_json(kind: str, findings: Sequence[Finding]) -> str:
    """Return the findings of a check as JSON."""
    records = [
        {"topic": finding.subject, "state": finding.severity, "words": finding.message, "hint": finding.hint}
        for finding in findings
    ]
    return json_text(kind, ready=all(finding.severity != "miss" for finding in findings), findings=records)
