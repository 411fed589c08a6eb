"""Values and lines that no program of orch writes, for whoever reads what nodes have written."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from orch_node.protocol.events import KINDS

NUMBERS = (
    st.integers()
    | st.floats()
    | st.sampled_from([10**30, -(10**400), 2**63, 1e308, float("nan"), float("inf"), -1, True])
)
TEXTS = st.text() | st.sampled_from(
    [
        "\x1b[2J\x1b]0;title\x07",
        "\ud800",
        "[/red]",
        "[bold]x",
        "\r\n\t",
        "x" * 5000,
        ":warning:",
        "error: rank 999999999999 on x",
        "Connection closed by peer",
        "\u202e",
        "\x00",
    ]
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)
NAMES = st.sampled_from(sorted(KINDS)) | TEXTS
FIELDS = st.sampled_from(
    [
        "rank",
        "time",
        "restart",
        "text",
        "node",
        "nodes",
        "code",
        "signal",
        "stopped",
        "oom",
        "phase",
        "step",
        "steps",
        "loss",
        "ranks",
        "attempt",
        "of",
        "stands",
        "failure",
        "outcome",
        "cpus",
        "pid",
        "wrapper",
        "state",
        "after",
        "before",
        "backend",
        "torch",
        "count",
        "samples_per_second",
    ]
)
DEEP = '{"event": "progress", "rank": 0, "x": ' + "[" * 100_000 + "]" * 100_000 + "}"
HUGE = '{"event": "progress", "rank": 0, "step": 1' + "0" * 10_000 + "}"


def with_head(event: str, rank: Any, more: dict[str, Any]) -> str:
    return json.dumps({"event": event, "rank": rank, "time": 1767268800.0, **more})


LINES = (
    st.builds(with_head, NAMES, st.integers(-1, 3) | JSON, st.dictionaries(FIELDS, JSON))
    | st.sampled_from(
        [
            DEEP,
            HUGE,
            '{"event": "exit", "rank": 0',
            '{"event"',
            "",
            "[]",
            "null",
            "1",
            "{}",
            '{"event": "exit", "rank": 0}',
            '{"event": "stalled", "rank": -1, "stands": {"x": "y"}}',
            '{"event": "progress", "rank": 0, "step": NaN}',
        ]
    )
    | st.builds(json.dumps, JSON)
)
# Whole files, and bytes that are no text at all.
FILES = st.binary(max_size=300) | st.lists(
    LINES.map(lambda line: line.encode()) | st.binary(max_size=40), max_size=8
).map(lambda lines: b"\n".join([*lines, b""]))
