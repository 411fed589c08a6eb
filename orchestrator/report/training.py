"""A training run on the screen: its progress while it lives, its table when it has ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from orchestrator.report.listing import SCHEMA
from orchestrator.runs import timeline
from orchestrator.runs.outcome import Outcome

TEXT_LINES = 25
# While it lives.
TOLD = (
    "waiting", "node", "decision", "refused", "failed", "warning", "lost", "stalled", "restarting",
)  # fmt: skip


class Screen:
    """Progress on standard error: a bar on a terminal, plain lines in a pipe."""

    def __init__(self) -> None:
        self.ranks = 0
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}"),
            console=self.console,
            disable=not sys.stderr.isatty(),
        )
        self.tasks: dict[str, Any] = {}
        self.joined: set[int] = set()
        self.warned: set[str] = set()
        self.shown: dict[str, int] = {}
        self.last: dict[str, dict[str, Any]] = {}  # phase -> its newest figures

    def begin(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.note(line)
        self.progress.start()

    def end(self) -> None:
        self.progress.stop()

    def note(self, line: str) -> None:
        self.console.print(line, markup=False)

    def show(self, event: dict[str, Any]) -> None:
        """One event; progress is shown for rank 0, which speaks for all ranks."""
        if event["event"] == "launched":
            self.joined, self.ranks = set(), event["ranks"]
        if event["event"] in TOLD and not timeline.is_echo(event, self.warned):
            for line in timeline.words(event):
                self.note(line)
        if event["event"] == "joined":
            self.joined.add(event["rank"])
            if len(self.joined) == self.ranks:
                self.note(
                    f"all {len(self.joined)} ranks joined on {event['backend']}, "
                    f"torch {event['torch']}"
                )
        elif event["event"] == "progress" and event["rank"] == 0:
            self.step(event)

    def step(self, event: dict[str, Any]) -> None:
        phase, step, steps = event["phase"], event.get("step", 0), event.get("steps")
        figures = self.last.setdefault(phase, {})
        figures |= {name: value for name, value in event.items() if value is not None}
        detail = details(figures)
        if not self.progress.disable:
            if phase not in self.tasks:
                self.tasks[phase] = self.progress.add_task(phase, total=steps, detail="")
            self.progress.update(self.tasks[phase], completed=step, total=steps, detail=detail)
        elif worth_a_line(self.shown.get(phase), step, steps):
            self.shown[phase] = step
            self.note(f"{phase}: {step}/{steps} {detail}".rstrip())


def worth_a_line(last: int | None, step: int, steps: int | None) -> bool:
    """In a pipe: the first step, the last, and about every tenth part between."""
    if last is None or step == steps:
        return True
    return step - last >= max(1, (steps or 100) // 10)


def details(event: dict[str, Any]) -> str:
    parts = []
    if event.get("loss") is not None:
        parts.append(f"loss {event['loss']:.4f}")
    if event.get("samples_per_second") is not None:
        parts.append(f"{event['samples_per_second']:.1f} samples/s")
    return ", ".join(parts)


def as_json(outcome: Outcome) -> str:
    value = {
        "schema": SCHEMA,
        "kind": "run",
        **asdict(outcome),
        "folder": str(outcome.folder),
        "exit_code": outcome.exit_code,
    }
    return json.dumps(value, indent=1)


def text(outcome: Outcome) -> str:
    """The end of a run: its table, or what went wrong."""
    lines = [*failure_lines(outcome), *table_lines(outcome)]
    return "\n".join([*lines, f"files: {outcome.folder}"])


def whole(outcome: Outcome) -> str:
    """What a run was: its decisions, then how it ended."""
    decided = [decision.describe() for decision in outcome.decisions]
    told = timeline.lines(list(outcome.timeline))
    told_below = outcome.state != "done" and not outcome.problem and not outcome.failure
    state = [] if told_below else [f"state: {outcome.state}"]
    return "\n".join([*decided, *told, *state, text(outcome)])


def failure_lines(outcome: Outcome) -> list[str]:
    told = [f"{outcome.state}: {outcome.problem}"] if outcome.problem else []
    if outcome.failure:
        last = outcome.failure.text.splitlines()[-TEXT_LINES:]
        told += [f"failed: {outcome.failure.describe()}", *(f"  {line}" for line in last)]
    if told:
        return [*told, *explanation_lines(outcome), *left_lines(outcome)]
    return [] if outcome.state == "done" else [f"state: {outcome.state}", *left_lines(outcome)]


def left_lines(outcome: Outcome) -> list[str]:
    """Nodes that did not confirm that nothing of the run is left there."""
    return [
        f"{node}: {'not reached: ' + found['lost'] if 'lost' in found else 'processes are left'}"
        "; orch stop tries again"
        for node, found in outcome.nodes.items()
        if found.get("lost") or found.get("left")
    ]


def explanation_lines(outcome: Outcome) -> list[str]:
    return [line for one in outcome.explanations for line in one.describe().splitlines()]


def table_lines(outcome: Outcome) -> list[str]:
    result = outcome.result
    if outcome.state != "done" or result is None:
        return []
    table = Table(title=f"{outcome.recipe}: {outcome.run_id}", title_justify="left")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    before, after = result.get("before") or {}, result.get("after") or {}
    for name in after or before:
        table.add_row(name.upper(), score(before.get(name)), score(after.get(name)))
    for name, value in figures(outcome, result):
        table.add_row(name, "", value)
    console = Console(highlight=False, width=100)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip().splitlines()


def score(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def figures(outcome: Outcome, result: dict[str, Any]) -> list[tuple[str, str]]:
    """What a recipe reported of its speed, and what the run was."""
    measured = [
        ("samples/s, training", result.get("train_samples_per_second")),
        ("seconds, training", result.get("train_seconds")),
        ("seconds, all", outcome.seconds),
    ]
    return [
        *((name, f"{value:.1f}") for name, value in measured if value is not None),
        ("ranks", str(outcome.ranks)),
        ("precision", outcome.precision),
        ("backend", outcome.backend),
    ]
