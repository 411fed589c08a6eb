"""Print docs/reference/events.md, the reference page of a run's events, from their types."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from orch_node.protocol.events import KINDS, Event

HEAD = """# Events

This page lists the events in `events.jsonl` of a run. You need it when you process this file with your own program.

The file contains one line of JSON per event: `{"event": "joined", "rank": 3, "time": 1767268800.0, "node": "node1"}`.

Every event has `event` (its kind), `rank` (-1 for the run as a whole), `time` (seconds since the epoch) and `restart`
(the number of torchrun's restart to which the rank belongs). A missing field has its default value. Kinds that are not
in this table come from a script: [Train your own script](../how-to/own-scripts.md#report-progress-and-results).

| event | meaning | fields |
| --- | --- | --- |
"""


def page() -> str:
    return HEAD + "\n".join(rows()) + "\n"


def rows() -> Iterator[str]:
    common = {field.name for field in dataclasses.fields(Event)}
    for name, kind in KINDS.items():
        fields = (field.name for field in dataclasses.fields(kind) if field.name not in common)
        docstring = (kind.__doc__ or "").split("\n\n")[0]
        meaning = "" if docstring.startswith(f"{kind.__name__}(") else " ".join(docstring.split())
        yield f"| `{name}` | {meaning} | {', '.join(f'`{field}`' for field in fields)} |"


if __name__ == "__main__":
    print(page(), end="")
