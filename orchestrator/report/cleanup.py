"""What `orch stop` and `orch clean` ended, node by node: values -> a table, JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from orchestrator.report.listing import SCHEMA, table
from orchestrator.runs.cleanup import CleanupReport


def as_json(kind: str, cleanup: CleanupReport) -> str:
    head = {"schema": SCHEMA, "kind": kind, "exit_code": cleanup.exit_code}
    return json.dumps({**head, **asdict(cleanup)}, indent=1)


def text(cleanup: CleanupReport) -> str:
    rows = [
        {
            "node": node.node,
            "state": node.state,
            "ended": len(node.ended),
            "left": len(node.left),
            "segments": len(node.segments),
            "problem": node.problem,
        }
        for node in cleanup.nodes
    ]
    moved = [f"{node.node}: {line}" for node in cleanup.nodes for line in node.moved]
    found = [f"{node.node}: {line}" for node in cleanup.nodes for line in node.left]
    columns = ("node", "state", "ended", "left", "segments", "problem")
    return "\n".join([table(rows, columns), *moved, *found, f"in {cleanup.seconds:.1f} s"])
