"""Reports of what `orch stop` and `orch clean` ended on each node, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from orch_node.protocol.node_names import MAX_LISTED, fold, fold_by_text
from orch_node.protocol.outcome import STOPPED

from orchestrator.report.listing import json_text, table
from orchestrator.runs.outcome import CleanupReport

LIVING = ("planned", "queued", "running")
COLUMNS = ("node", "state", "ended", "left", "segments", "problem")


def as_json(kind: str, cleanup: CleanupReport, **fields: object) -> str:
    """Return the results of all nodes as JSON, with additional fields."""
    return json_text(kind, {"exit_code": cleanup.exit_code, **asdict(cleanup)}, **fields)


def text(cleanup: CleanupReport) -> str:
    """Return a table of the nodes, followed by the moved runs, the removed folders and the leftovers."""
    rows = table_rows(cleanup)
    moved = [f"{node.node}: {line}" for node in cleanup.nodes for line in node.moved]
    unused = [f"{node.node}: removed {path}: no run uses it" for node in cleanup.nodes for path in node.unused]
    leftovers = [f"{node.node}: {line}" for node in cleanup.nodes for line in node.left]
    leftovers += [left_in_memory(node.node, node.segments_left) for node in cleanup.nodes if node.segments_left]
    if not rows:
        return f"nothing was running any more; in {cleanup.seconds:.1f} s"
    return "\n".join([table(rows, COLUMNS), *moved, *unused, *leftovers, f"in {cleanup.seconds:.1f} s"])


def table_rows(cleanup: CleanupReport) -> list[dict[str, object]]:
    """Return a row for each node, or for all of many nodes with the same values."""
    nodes_by_values: dict[tuple[object, ...], list[str]] = {}
    many = len(cleanup.nodes) > MAX_LISTED
    for node in cleanup.nodes:
        values = (node.state, len(node.ended), len(node.left), len(node.segments), node.problem)
        nodes_by_values.setdefault(values if many else (*values, node.node), []).append(node.node)
    return [
        {"node": fold(nodes), **dict(zip(COLUMNS[1:], values, strict=False))}
        for values, nodes in nodes_by_values.items()
    ]


def describe_stop(cleanup: CleanupReport, *, before: str, after: str) -> str:
    """Return a sentence that says whether the run was stopped or had already ended.

    Args:
        cleanup: what was ended on each node.
        before: the state of the run before the stop.
        after: its state after the stop.
    """
    if remaining := fold_by_text({node.node: node.state for node in cleanup.nodes if node.state != "clean"}):
        names = ", ".join(f"{nodes} ({state})" for nodes, state in remaining)
        return f"Run {cleanup.run_id} is not stopped on {names}."
    has_ended = any(node.ended for node in cleanup.nodes)
    state = after if before in LIVING else before
    if before in LIVING and (has_ended or state in (*LIVING, STOPPED)):
        return f"Stopped run {cleanup.run_id}."
    leftovers = "ended what was left of it" if has_ended else "nothing of it was left"
    return f"Run {cleanup.run_id} had already ended ({state}); {leftovers}."


def left_in_memory(node: str, paths: Sequence[str]) -> str:
    """Return a line about the files of a run in /dev/shm that orch does not remove."""
    return (
        f"{node}: left in /dev/shm: {', '.join(paths)} (in use, or not known to be MPI's, oneCCL's "
        "or torch's: remove it by hand if nobody needs it)"
    )
