"""A training run on the screen: its progress while it lives, its table when it has ended."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from orch_node.protocol.events import (
    Decided,
    Event,
    Failed,
    Joined,
    Launched,
    NodeNews,
    NodesLost,
    Refused,
    Restarting,
    Stalled,
    Waiting,
    Warned,
    record,
)
from orch_node.protocol.events import Progress as Told
from orch_node.protocol.outcome import nodes_record
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from orchestrator.report.cleanup import left_in_memory
from orchestrator.report.listing import SCHEMA
from orchestrator.runs import timeline
from orchestrator.runs.outcome import Outcome
from orchestrator.runs.result import Scores, number, scores
from orchestrator.screen import console, harmless, paper

TEXT_LINES = 25
LONGEST_PHASE = 80
# While it lives.
TOLD = (
    Waiting, NodeNews, Decided, Refused, Failed, Warned, NodesLost, Stalled, Restarting,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The newest of a phase, as far as they have been told."""

    loss: float | None = None
    samples_per_second: float | None = None

    def renewed(self, told: Told) -> Figures:
        speed = number(told.figures.get("samples_per_second"))
        return Figures(
            loss=self.loss if told.loss is None else told.loss,
            samples_per_second=self.samples_per_second if speed is None else speed,
        )

    def describe(self) -> str:
        parts = []
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.samples_per_second is not None:
            parts.append(f"{self.samples_per_second:.1f} samples/s")
        return ", ".join(parts)


class Screen:
    """Progress on standard error: a bar on a terminal, plain lines in a pipe."""

    def __init__(self) -> None:
        self.ranks = 0
        self.console = console()
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            console=self.console,
            disable=not sys.stderr.isatty(),
        )
        self.tasks: dict[str, TaskID] = {}
        self.joined: set[int] = set()
        self.warned: set[str] = set()
        self.shown: dict[str, float] = {}
        self.last: dict[str, Figures] = {}  # by phase

    def begin(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.note(line)
        self.progress.start()

    def end(self) -> None:
        self.progress.stop()

    def note(self, line: str) -> None:
        self.console.print(harmless(line))

    def show(self, event: Event) -> None:
        """One event; progress is shown for rank 0, which speaks for all ranks."""
        if isinstance(event, Launched):
            self.joined, self.ranks = set(), event.ranks
        if isinstance(event, TOLD) and not timeline.is_echo(event, self.warned):
            for line in timeline.words(event):
                self.note(line)
        if isinstance(event, Joined):
            self.joined.add(event.rank)
            if len(self.joined) == self.ranks:
                self.note(
                    f"all {len(self.joined)} ranks joined on {event.backend}, torch {event.torch}"
                )
        elif isinstance(event, Told) and event.rank == 0:
            self.step(event)

    def step(self, event: Told) -> None:
        phase, step, steps = (
            harmless(event.phase or "progress")[:LONGEST_PHASE],
            event.step or 0,
            event.steps,
        )
        self.last[phase] = self.last.get(phase, Figures()).renewed(event)
        detail = self.last[phase].describe()
        if not self.progress.disable:
            if phase not in self.tasks:
                self.tasks[phase] = self.progress.add_task(phase, total=steps, detail="")
            self.progress.update(self.tasks[phase], completed=step, total=steps, detail=detail)
        elif worth_a_line(self.shown.get(phase), step, steps):
            self.shown[phase] = step
            self.note(f"{phase}: {step}/{steps or '?'} {detail}".rstrip())


def worth_a_line(last: float | None, step: float, steps: float | None) -> bool:
    """In a pipe: the first step, the last, and about every tenth part between."""
    if last is None or step == steps:
        return True
    return step - last >= max(1, (steps or 100) // 10)


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


def text(outcome: Outcome) -> str:
    """The end of a run: its table, or what went wrong."""
    lines = [*failure_lines(outcome), *memory_lines(outcome), *table_lines(outcome), *outcome.notes]
    return "\n".join([*lines, f"files: {outcome.folder}"])


def whole(outcome: Outcome) -> str:
    """What a run was: its decisions, then how it ended."""
    decided = [decision.describe() for decision in outcome.decisions]
    told = timeline.lines(outcome.timeline)
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
        f"{node}: {f'not reached: {found.lost}' if found.lost else 'processes are left'}"
        "; orch stop tries again"
        for node, found in outcome.nodes.items()
        if found.lost or found.left
    ]


def memory_lines(outcome: Outcome) -> list[str]:
    return [
        left_in_memory(node, found.segments_left)
        for node, found in outcome.nodes.items()
        if found.segments_left
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
    told = scores(result)
    for name in told.after or told.before:
        table.add_row(
            harmless(name.upper()), score(told.before.get(name)), score(told.after.get(name))
        )
    for name, value in figures(outcome, told):
        table.add_row(name, "", value)
    sheet = paper(width=100)
    with sheet.capture() as capture:
        sheet.print(table)
    return capture.get().rstrip().splitlines()


def score(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def figures(outcome: Outcome, told: Scores) -> list[tuple[str, str]]:
    """What a recipe reported of its speed, and what the run was."""
    measured = [
        ("samples/s, training", told.train_samples_per_second),
        ("seconds, training", told.train_seconds),
        ("seconds, all", outcome.seconds),
    ]
    return [
        *((name, f"{value:.1f}") for name, value in measured if value is not None),
        ("ranks", str(outcome.ranks)),
        ("precision", outcome.precision),
        ("backend", outcome.backend),
    ]
