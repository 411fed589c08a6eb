"""What `orch stop` and `orch clean` ended, node by node: values -> a table, JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from orchestrator.report.listing import SCHEMA, table


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSwept:
    """One node. `state`: clean, left (there are processes of the run) or unreachable."""

    node: str
    state: str
    ended: tuple[str, ...]
    left: tuple[str, ...]
    segments: tuple[str, ...]
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """All nodes, and the seconds that it took. `run_id` is empty where it was about all runs."""

    run_id: str
    seconds: float
    nodes: tuple[NodeSwept, ...]

    @property
    def exit_code(self) -> int:
        return 0 if all(node.state == "clean" for node in self.nodes) else 1


def as_json(kind: str, swept: Swept) -> str:
    head = {"schema": SCHEMA, "kind": kind, "exit_code": swept.exit_code}
    return json.dumps({**head, **asdict(swept)}, indent=1)


def text(swept: Swept) -> str:
    rows = [
        {
            "node": node.node,
            "state": node.state,
            "ended": len(node.ended),
            "left": len(node.left),
            "segments": len(node.segments),
            "problem": node.problem,
        }
        for node in swept.nodes
    ]
    found = [f"{node.node}: {line}" for node in swept.nodes for line in node.left]
    columns = ("node", "state", "ended", "left", "segments", "problem")
    return "\n".join([table(rows, columns), *found, f"in {swept.seconds:.1f} s"])
