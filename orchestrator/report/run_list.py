"""The table of `orch runs`, and a line for each of several runs that were started at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from orch_node.protocol.events import format_seconds

from orchestrator.model.decision import array_values
from orchestrator.model.recipe import NUMBER, matches
from orchestrator.report import training
from orchestrator.report.listing import cell, json_text, number_text, table
from orchestrator.runs import store
from orchestrator.runs.outcome import RunOutcome
from orchestrator.runs.rows import RunRow, cause

COLUMNS = ("id", "name", "state", "started_by", "age", "duration", "ranks", "arguments", "result", "cause")
FOLDED = ("cause", "arguments", "result", "name")  # get a line of their own on a narrow terminal, in this order
LONGEST_CELL = 60  # characters of a column before the last one
MOST_SCORES = 3
UNITS = (("d", 86400), ("h", 3600), ("m", 60))


def text(rows: Sequence[RunRow], *, now: float, width: int | None) -> str:
    """Return the runs as a table without empty columns.

    Args:
        rows: the runs.
        now: the time in seconds since the epoch.
        width: the width of the terminal, or None for one line per run.
    """
    arguments = different_arguments(rows)
    cells = [{name: cell(value) for name, value in cells_of(row, arguments[row.id], now).items()} for row in rows]
    one_user = len({row.started_by for row in rows}) == 1
    columns = [name for name in COLUMNS if any(row[name] for row in cells) and not (name == "started_by" and one_user)]
    folded: list[str] = []
    head, *lines = table(cells, columns).split("\n")
    while width and max(map(len, (head, *lines))) > width and (names := [name for name in FOLDED if name in columns]):
        columns.remove(names[0])
        folded.append(names[0])
        head, *lines = table(cells, columns).split("\n")
    for index, row in enumerate(cells):
        folded_lines = [f"  {name}: {row[name]}" for name in reversed(folded) if row[name]]
        lines[index] = "\n".join([lines[index], *(shortened(line, width or 0) for line in folded_lines)])
    return "\n".join([head, *lines])


def cells_of(row: RunRow, arguments: str, now: float) -> dict[str, object]:
    end = now if row.ended is None else row.ended
    is_timed = row.started is not None and (row.ended is not None or row.state == "running")
    return {
        "id": row.id,
        "name": row.name,
        "state": row.state,
        "started_by": row.started_by,
        "age": age(now - row.created),
        "duration": format_seconds(max(0.0, end - (row.started or 0.0))) if is_timed else "",
        "ranks": row.ranks,
        "arguments": shortened(arguments, LONGEST_CELL),
        "result": result(row),
        "cause": row.cause,
    }


def shortened(line: str, width: int) -> str:
    """Return a line that fits into a width."""
    return line if len(line) <= width else f"{line[: width - 1]}…"


def age(seconds: float) -> str:
    """Return an age in its largest unit, as one word: `5m`."""
    unit, size = next(((unit, size) for unit, size in UNITS if seconds >= size), ("s", 1))
    return f"{max(0.0, seconds) // size:.0f}{unit}"


def result(row: RunRow) -> str:
    """Return the scores of a run that is done, otherwise its progress and its last loss; NaN is marked."""
    scores = [f"{name} {number_text(value, 4)}" for name, value in list(row.scores.items())[:MOST_SCORES]]
    loss = "loss NaN" if row.has_nan_loss else "" if row.loss is None else f"loss {number_text(row.loss, 5)}"
    if scores:
        return ", ".join([*scores, *([loss] if row.has_nan_loss else [])])
    progress = "" if row.progress == row.cause or (row.state == "done" and loss) else row.progress
    return ", ".join(filter(None, (progress, loss)))


def different_arguments(rows: Sequence[RunRow]) -> dict[str, str]:
    """Return the arguments and settings that differ between the runs of one script or recipe, by run."""
    parsed = {row.id: parse_arguments(row.arguments) for row in rows}
    runs = Counter(row.recipe for row in rows)
    runs_with = Counter((row.recipe, *argument) for row in rows for argument in parsed[row.id].items())
    return {
        row.id: " ".join(v for k, v in parsed[row.id].items() if runs_with[row.recipe, k, v] < runs[row.recipe])
        for row in rows
    }


def parse_arguments(arguments: Sequence[str]) -> Mapping[str, str]:
    """Return the text of each argument by its name: `lr=0.1` for `--lr 0.1`, `--lr=0.1` and the setting `lr=0.1`."""
    texts: dict[str, str] = {}
    option = ""
    for argument in arguments:
        name, equals, value = argument.lstrip("-").partition("=")
        is_option = argument.startswith("-") and not matches(argument, NUMBER)
        if is_option or (equals and name.isidentifier()):
            option = name if is_option and not equals else ""
            texts[name] = f"{name}={value}" if equals else name
        elif option:
            texts[option] += f" {argument}" if "=" in texts[option] else f"={argument}"
        else:
            texts[str(len(texts))] = argument
    return texts


def array_line(outcome: RunOutcome) -> str:
    """Return the line of one run, such as `ID learning_rate=1e-5 (1 of 3): done`."""
    reason = cause(outcome.failure) if outcome.failure else outcome.problem
    return f"{outcome.run_id} {array_values(outcome.decisions)}: {outcome.state}{f': {reason}' if reason else ''}"


def array_text(outcomes: Sequence[RunOutcome]) -> str:
    """Return a line for each run and the command that compares them."""
    arrays = {(store.runs_dir_option(item.folder.parent), item.run_id.rpartition("-")[0]) for item in outcomes}
    commands = (f"to compare them: orch runs{option} compare {array}" for option, array in arrays)
    return "\n".join([*map(array_line, outcomes), *commands])


def array_json(outcomes: Sequence[RunOutcome], exit_code: int) -> str:
    """Return all runs and the exit code as JSON."""
    runs = [json.loads(training.as_json(outcome)) for outcome in outcomes]
    return json_text("array", runs=runs, exit_code=exit_code)
