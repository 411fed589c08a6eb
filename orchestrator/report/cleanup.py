"""What `orch stop` and `orch clean` ended, node by node: values -> a table, JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
    found += [left_in_memory(node.node, node.segments_left) for node in cleanup.nodes
              if node.segments_left]  # fmt: skip
    columns = ("node", "state", "ended", "left", "segments", "problem")
    return "\n".join([table(rows, columns), *moved, *found, f"in {cleanup.seconds:.1f} s"])


def left_in_memory(node: str, paths: Sequence[str]) -> str:
    """What a run has left in /dev/shm that orch does not remove."""
    return (
        f"{node}: left in /dev/shm: {', '.join(paths)} (in use, or not known to be MPI's, oneCCL's "
        "or torch's: remove it by hand if nobody needs it)"
    )
