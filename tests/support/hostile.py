"""Values, lines and files that orch itself never writes, for tests of the code that reads data from nodes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from orch_node.protocol.events import KINDS

ESCAPE_SEQUENCE = "\x1b]0;title\x07"
# Names of files that leave their folder, or that other programs misread.
UNSAFE_NAMES = (
    *("../../authorized_keys", "../plan.json", "/etc/passwd", "..", ".", "", "a/../../b", "rank-0.log/../../../x"),
    *("a/b", "-rf", "a b", "new\nline", "nul\0", ".hidden", "x" * 200, "ü"),
)
SPECIAL_NUMBERS = [10**30, -(10**400), 2**63, 1e308, float("nan"), float("inf"), -1, True]
NUMBERS = st.integers() | st.floats() | st.sampled_from(SPECIAL_NUMBERS)
TERMINAL_TEXTS = [f"\x1b[2J{ESCAPE_SEQUENCE}", "[/red]", "[bold]x", "\r\n\t", ":warning:", "\u202e", "\x00"]
ERROR_TEXTS = ["error: rank 999999999999 on x", "Connection closed by peer"]
TEXTS = st.text() | st.sampled_from([*TERMINAL_TEXTS, *ERROR_TEXTS, "\ud800", "x" * 5000])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)
EVENT_NAMES = st.sampled_from(sorted(KINDS)) | TEXTS
EVENT_FIELDS = (
    "rank time restart text node nodes code signal stopped oom phase step steps loss ranks attempt of stands failure "
    "outcome cpus pid wrapper state after before backend torch count samples_per_second"
)
DEEP_EVENT = '{"event": "progress", "rank": 0, "x": ' + "[" * 100_000 + "]" * 100_000 + "}"
HUGE_NUMBER_EVENT = '{"event": "progress", "rank": 0, "step": 1' + "0" * 10_000 + "}"
EVENT_LINES = [
    DEEP_EVENT,
    HUGE_NUMBER_EVENT,
    *('{"event": "exit", "rank": 0', '{"event"', "", "[]", "null", "1", "{}"),
    '{"event": "exit", "rank": 0}',
    '{"event": "stalled", "rank": -1, "stands": {"x": "y"}}',
    '{"event": "progress", "rank": 0, "step": NaN}',
]


def make_event_line(event: str, rank: Any, fields: dict[str, Any]) -> str:
    """Return a line of an event log with these fields."""
    return json.dumps({"event": event, "rank": rank, "time": 1767268800.0, **fields})


LINES = (
    st.builds(
        make_event_line,
        EVENT_NAMES,
        st.integers(-1, 3) | JSON,
        st.dictionaries(st.sampled_from(EVENT_FIELDS.split()), JSON),
    )
    | st.sampled_from(EVENT_LINES)
    | st.builds(json.dumps, JSON)
)
# Files of such lines, and files that are not text.
FILES = st.binary(max_size=300) | st.lists(
    LINES.map(lambda line: line.encode()) | st.binary(max_size=40), max_size=8
).map(lambda lines: b"\n".join([*lines, b""]))
