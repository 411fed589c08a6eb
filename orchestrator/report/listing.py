"""Rows as a table for people or as one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.model.printable import one_line

SCHEMA = 1


def as_json(kind: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as one JSON object."""
    return json.dumps({"schema": SCHEMA, "kind": kind, kind: list(rows)}, indent=1)


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
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return one_line(text)
