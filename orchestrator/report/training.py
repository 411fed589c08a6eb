"""A training run that has ended: its table, or what went wrong."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from orch_node.protocol.events import record
from orch_node.protocol.outcome import PREEMPTED, REFUSED, nodes_record

from orchestrator.report.cleanup import left_in_memory
from orchestrator.report.figures import table_lines
from orchestrator.report.listing import SCHEMA
from orchestrator.runs import timeline
from orchestrator.runs.outcome import Outcome

TEXT_LINES = 25


def as_json(outcome: Outcome) -> str:
    value = {
        "schema": SCHEMA,
        "kind": "run",
        **asdict(outcome),
        "nodes": nodes_record(outcome.nodes),
        "result": finite(record(outcome.result)) if outcome.result else None,
        "folder": str(outcome.folder),
        "exit_code": outcome.exit_code,
    }
    return json.dumps(value, indent=1)


def finite(value: Any) -> Any:
    """The same without what JSON does not know: NaN, infinities."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text(outcome: Outcome, *, shown: str = "none", with_files: bool = True) -> str:
    """Return the end of a run: its table, or what went wrong.

    `shown`: the rank whose output is on the screen already, `all` or `none`.
    `with_files`: whether to name the run's folder.
    """
    lines = [*failure_lines(outcome, shown), *memory_lines(outcome), *table_lines(outcome), *outcome.notes]
    lines += [outcome.accounting.describe()] if outcome.accounting else []
    files = [] if outcome.state == REFUSED or not with_files else [f"files: {outcome.folder}"]
    return "\n".join([*lines, *files])


def whole(outcome: Outcome) -> str:
    """What a run was: its decisions, then how it ended."""
    decided = [decision.describe() for decision in outcome.decisions]
    told = timeline.lines(outcome.timeline)
    told_below = outcome.state != "done" and not outcome.problem and not outcome.failure
    state = [] if told_below else [f"state: {outcome.state}"]
    return "\n".join([*decided, *told, *state, text(outcome)])


def failure_lines(outcome: Outcome, shown: str) -> list[str]:
    told = [f"{outcome.state}: {outcome.problem}{goes_on(outcome)}"] if outcome.problem else []
    if outcome.failure:
        is_shown = shown in ("all", str(outcome.failure.rank))
        last = outcome.failure.text.splitlines()[-1 if is_shown else -TEXT_LINES :]
        told += [f"failed: {outcome.failure.describe()}", *(f"  {line}" for line in last)]
    if told:
        return [*told, *explanation_lines(outcome), *left_lines(outcome)]
    return [] if outcome.state == "done" else [f"state: {outcome.state}", *left_lines(outcome)]


def goes_on(outcome: Outcome) -> str:
    """How a run goes on that has made room."""
    made_room = outcome.state == PREEMPTED
    return "; start again with the same command to go on" if made_room else ""


def left_lines(outcome: Outcome) -> list[str]:
    """Nodes that did not confirm that nothing of the run is left there."""
    return [
        f"{node}: {f'not reached: {found.lost}' if found.lost else 'processes are left'}; orch stop tries again"
        for node, found in outcome.nodes.items()
        if found.lost or found.left
    ]


def memory_lines(outcome: Outcome) -> list[str]:
    return [left_in_memory(node, found.segments_left) for node, found in outcome.nodes.items() if found.segments_left]


def explanation_lines(outcome: Outcome) -> list[str]:
    return [line for one in outcome.explanations for line in one.describe().splitlines()]
