"""The report of a training run that has ended: its table, or the reason and the error of the rank that failed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from orch_node.protocol.events import record
from orch_node.protocol.node_names import fold_by_text
from orch_node.protocol.outcome import REFUSED, nodes_record
from orch_node.protocol.record import number_ranges

from orchestrator.model.decision import Finding
from orchestrator.report.cleanup import left_in_memory
from orchestrator.report.figures import table_lines
from orchestrator.report.listing import SCHEMA, detail_lines
from orchestrator.runs import timeline, tracebacks
from orchestrator.runs.outcome import Outcome

TEXT_LINES = 25  # of output that has no traceback


def error_lines(text: str, *, is_shown: bool = False) -> Iterator[str]:
    """Yield the lines of a rank's error, with paths as they are on this machine.

    Args:
        text: the traceback, the stack that a fatal signal has left, or the end of the rank's output.
        is_shown: whether the whole text is on the screen already.
    """
    traceback = tracebacks.parse_last(text)
    if traceback is None and (stack := tracebacks.stack_of_signal(text)):
        message = [line for line in text.splitlines() if line.startswith("Fatal Python error: ")]
        traceback = replace(stack, message=message[-1:])
    if traceback is None or not traceback.frames:
        lines = text.splitlines()
        yield from lines[-1 if is_shown else -TEXT_LINES :]
        return
    if is_shown:
        traceback = replace(traceback, frames=traceback.user_frames[-1:])
    yield from tracebacks.shorten(traceback, current_folder())


def current_folder() -> str:
    """Return the current folder, or '' if it was deleted."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


def describe_same_error(ranks: tuple[int, ...]) -> list[str]:
    """Return a line about other ranks that ended with the same error, if there are any."""
    if not ranks:
        return []
    return [f"rank{'s' * (len(ranks) > 1)} {number_ranges(ranks)} had the same error"]


def as_json(outcome: Outcome) -> str:
    """Return the outcome of a run as JSON."""
    value = {
        "schema": SCHEMA,
        "kind": "run",
        **asdict(outcome),
        "nodes": nodes_record(outcome.nodes),
        "explanations": list(map(explanation_record, outcome.explanations)),
        "result": finite(record(outcome.result)) if outcome.result else None,
        "folder": str(outcome.folder),
        "exit_code": outcome.exit_code,
    }
    return json.dumps(value, indent=1)


def explanation_record(finding: Finding) -> dict[str, str]:
    """Return a known error of a log as stored in JSON."""
    return {"name": finding.subject, "line": finding.evidence, "cause": finding.message, "hint": finding.hint}


def finite(value: Any) -> Any:
    """Return the value with NaN and infinities, which JSON cannot represent, replaced by None."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text(outcome: Outcome, *, shown: str = "none", with_files: bool = True) -> str:
    """Return the end of a run: its table, or the reason why it failed.

    Args:
        outcome: the outcome of the run.
        shown: the rank whose output is on the screen already, `all` or `none`.
        with_files: whether to name the run's folder.
    """
    lines = [*failure_lines(outcome, shown), *memory_lines(outcome), *table_lines(outcome), *outcome.notes]
    lines += [outcome.accounting.describe()] if outcome.accounting else []
    files = [] if outcome.state == REFUSED or not with_files else [f"files: {outcome.folder}"]
    return "\n".join([*lines, *files])


def full_report(outcome: Outcome) -> str:
    """Return the report of a run: its decisions, its timeline, and its end."""
    decided = [decision.describe() for decision in outcome.decisions]
    events = timeline.lines(outcome.timeline)
    state_follows = outcome.state != "done" and not outcome.problem and not outcome.failure
    state = [] if state_follows else [f"state: {outcome.state}"]
    return "\n".join([*decided, *events, *state, text(outcome)])


def failure_lines(outcome: Outcome, shown: str) -> list[str]:
    """Return what went wrong, the explanations for it, and the nodes with leftovers."""
    reasons = [f"{outcome.state}: {outcome.problem}"] if outcome.problem else []
    if outcome.failure:
        is_shown = shown in ("all", *map(str, (outcome.failure.rank, *outcome.same_error)))
        lines = [*error_lines(outcome.failure.text, is_shown=is_shown), *describe_same_error(outcome.same_error)]
        reasons += [f"failed: {outcome.failure.describe()}", *(f"  {line}" for line in lines)]
    if reasons:
        return [*reasons, *explanation_lines(outcome, printed="\n".join(reasons)), *left_lines(outcome)]
    return [] if outcome.state == "done" else [f"state: {outcome.state}", *left_lines(outcome)]


def left_lines(outcome: Outcome) -> list[str]:
    """Return a line for the nodes with the same problem that have not confirmed that they have no leftovers."""
    problems = {
        node: f"not reached: {cleanup.lost}" if cleanup.lost else "processes are left"
        for node, cleanup in outcome.nodes.items()
        if cleanup.lost or cleanup.left
    }
    return [f"{nodes}: {problem}; orch stop tries again" for nodes, problem in fold_by_text(problems)]


def memory_lines(outcome: Outcome) -> list[str]:
    """Return a line for each node on which shared memory segments are left."""
    return [
        left_in_memory(node, cleanup.segments_left) for node, cleanup in outcome.nodes.items() if cleanup.segments_left
    ]


def explanation_lines(outcome: Outcome, *, printed: str) -> list[str]:
    """Return the lines of all explanations, without lines of the log that are printed already."""
    return [line for explanation in outcome.explanations for line in detail_lines(explanation, printed=printed)]
