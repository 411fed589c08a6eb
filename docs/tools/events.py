"""The kinds of events as a page, from their types."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from orch_node.protocol.events import KINDS
from orch_node.protocol.events.of_ranks import Event

HEAD = """# Events

Made from the code. A run's `events.jsonl` has a line of JSON for each event:

```json
{"event": "joined", "rank": 3, "time": 1767268800.0, "node": "node1"}
```

Every event has `event` (its kind), `rank` (-1: it is told of the run as a whole), `time` (seconds
since the epoch) and `restart` (which of torchrun's restarts the rank belongs to). A field that is
missing has its default. Kinds that are not in this table are a script's own:
[Train your own script](../how-to/own-scripts.md#report-progress-and-results).

| event | | fields |
| --- | --- | --- |
"""


def page() -> str:
    return HEAD + "\n".join(rows()) + "\n"


def rows() -> Iterator[str]:
    common = {field.name for field in dataclasses.fields(Event)}
    for name, kind in KINDS.items():
        fields = (field.name for field in dataclasses.fields(kind) if field.name not in common)
        words = (kind.__doc__ or "").split("\n\n")[0]
        told = "" if words.startswith(f"{kind.__name__}(") else " ".join(words.split())
        yield f"| `{name}` | {told} | {', '.join(f'`{one}`' for one in fields)} |"
