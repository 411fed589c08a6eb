"""The report of a training run that has ended: its table, or the reason and the error of the rank that failed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from orch_node.protocol import values
from orch_node.protocol.events import Result, record
from orch_node.protocol.node_names import fold_by_text
from orch_node.protocol.outcome import REFUSED
from orch_node.protocol.record import number_ranges

from orchestrator.model.printable import one_line
from orchestrator.planning.software import OF_SCRIPT
from orchestrator.report.cleanup import left_in_memory
from orchestrator.report.listing import detail_lines, finite, json_text, number_text
from orchestrator.runs import store, timeline, tracebacks
from orchestrator.runs.measures import number, scores
from orchestrator.runs.outcome import RunOutcome

TableRow = tuple[str, str, str, str]  # name, value before the training, value after it or of the run, unit

LONGEST_UNIT = 20  # characters
TEXT_LINES = 25  # of output that has no traceback
SCORE_LABELS = {"em": "Exact match", "f1": "F1", "mcc": "MCC", "auc": "AUC"}


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
        yield from text.splitlines()[-1 if is_shown else -TEXT_LINES :]
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


def as_json(outcome: RunOutcome) -> str:
    """Return the outcome of a run as JSON."""
    fields = asdict(outcome)
    if outcome.failure:
        del fields["failure"]["time"]  # the timeline has it
    return json_text(
        "run",
        fields,
        nodes=values.record(outcome.nodes),
        explanations=[
            {"name": finding.subject, "line": finding.evidence, "cause": finding.message, "hint": finding.hint}
            for finding in outcome.explanations
        ],
        result=finite(record(outcome.result)) if outcome.result else None,
        folder=str(outcome.folder),
        exit_code=outcome.exit_code,
    )


def text(outcome: RunOutcome, *, shown: str = "none", with_files: bool = True) -> str:
    """Return the end of a run: its table, or the reason why it failed.

    Args:
        outcome: the outcome of the run.
        shown: the rank whose output is on the screen already, `all` or `none`.
        with_files: whether to name the run's folder.
    """
    segments = {node: cleanup.segments_left for node, cleanup in outcome.nodes.items() if cleanup.segments_left}
    leftovers = [left_in_memory(node, names) for node, names in segments.items()]
    lines = [*failure_lines(outcome, shown), *leftovers, *table_lines(outcome), *outcome.notes]
    lines += [outcome.accounting.describe()] if outcome.accounting else []
    files = [] if outcome.state == REFUSED or not with_files else [f"files: {outcome.folder}"]
    return "\n".join([*lines, *files])


def full_report(outcome: RunOutcome) -> str:
    """Return the report of a run: its decisions, its timeline, and its end."""
    decided = [decision.describe() for decision in outcome.decisions]
    events = timeline.lines(outcome.timeline)
    state_follows = outcome.state != "done" and not outcome.problem and not outcome.failure
    state = [] if state_follows else [f"state: {outcome.state}"]
    return "\n".join([*decided, *events, *state, text(outcome)])


def failure_lines(outcome: RunOutcome, shown: str) -> list[str]:
    """Return what went wrong, the explanations for it, and the nodes with leftovers."""
    reasons = [f"{outcome.state}: {outcome.problem}"] if outcome.problem else []
    if outcome.failure:
        is_shown = shown in ("all", *map(str, (outcome.failure.rank, *outcome.same_error)))
        lines = [*error_lines(outcome.failure.text, is_shown=is_shown)]
        if same := outcome.same_error:
            lines.append(f"rank{'s' * (len(same) > 1)} {number_ranges(same)} had the same error")
        reasons += [f"failed: {timeline.how_it_failed(outcome.failure)}", *(f"  {line}" for line in lines)]
    if reasons:
        printed = "\n".join(reasons)  # lines of the log that need not be repeated
        hints = [line for finding in outcome.explanations for line in detail_lines(finding, printed=printed)]
        return [*reasons, *hints, *left_lines(outcome)]
    return [] if outcome.state == "done" else [f"state: {outcome.state}", *left_lines(outcome)]


def left_lines(outcome: RunOutcome) -> list[str]:
    """Return a line for the nodes with the same problem that have not confirmed that they have no leftovers."""
    problems = {
        node: f"not reached: {cleanup.lost}" if cleanup.lost else "processes are left"
        for node, cleanup in outcome.nodes.items()
        if cleanup.lost or cleanup.left
    }
    arguments = store.cli_arguments(outcome.folder)
    return [f"{nodes}: {problem}; orch stop {arguments} tries again" for nodes, problem in fold_by_text(problems)]


def table_lines(outcome: RunOutcome) -> list[str]:
    """Return the lines of the table of scores and figures, or no lines if the run is not done."""
    result = outcome.result
    if outcome.state != "done":
        return []
    if result is None:
        return [] if outcome.seconds is None else [f"done in {outcome.seconds:.1f} s"]
    rows = [*score_rows(result), *run_rows(outcome, result)]
    if scores(result, "before"):
        rows.insert(0, ("", "Before", "After", ""))
    else:
        rows = [(name, "", after, unit) for name, _, after, unit in rows]
    names, before, after, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = (f"  {row[0]:{names}}  {row[1]:>{before}}  {row[2]:>{after}}  {row[3]}".rstrip() for row in rows)
    return [f"done: {one_line(outcome.recipe)}", *lines]


def score_rows(result: Result) -> Iterator[TableRow]:
    """Yield a row for each score, in the order in which the script reported them."""
    scores_before, scores_after, units = scores(result, "before"), scores(result), result.figures.get("units")
    units = units if isinstance(units, dict) else {}
    for name in {**scores_after, **scores_before}:
        score, comma, variant = one_line(name).partition(",")
        text = SCORE_LABELS.get(score) or score[:1].upper() + score[1:].replace("_", " ")
        unit, values = units.get(score), (scores_before.get(name), scores_after.get(name))
        is_exact = unit != "%" and any(0 < abs(value or 0) < 1 for value in values)
        before, after = (score_text(value, is_exact=is_exact) for value in values)
        shown_unit = one_line(unit) if isinstance(unit, str) and len(unit) <= LONGEST_UNIT else ""
        yield f"{text}{comma}{variant}", before, after, shown_unit


def score_text(value: float | None, *, is_exact: bool) -> str:
    """Return a score: a count as it is, others with two decimals, or with four digits if `is_exact`."""
    if value is None or isinstance(value, int):
        return "-" if value is None else str(value)
    return number_text(value, 4) if is_exact else f"{value:.2f}"


def run_rows(outcome: RunOutcome, result: Result) -> Iterator[TableRow]:
    """Yield the rows about the speed of the run and how it was run."""
    measured = (
        ("Mean speed", number(result.figures.get("train_samples_per_second")), "samples/s"),
        ("Training time", number(result.figures.get("train_seconds")), "s"),
        ("Whole run", outcome.seconds, "s"),
    )
    yield from ((name, "", f"{value:.1f}", unit) for name, value, unit in measured if value is not None)
    yield "Ranks", "", of_planned(str(outcome.ranks), outcome.ranks, outcome.planned_ranks), ""
    if outcome.precision != OF_SCRIPT:
        yield "Precision", "", one_line(outcome.precision), ""
    yield "Backend", "", one_line(outcome.backend), ""


def of_planned(text: str, count: int, planned: int) -> str:
    """Return the text with the planned number added if nodes were lost."""
    return text if count == planned else f"{text} of {planned} planned"
