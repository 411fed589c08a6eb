"""A training run on the screen while it lives."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
)
from orch_node.protocol.events import Progress as Told
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from orchestrator.runs import timeline
from orchestrator.runs.logs import LogLine
from orchestrator.runs.result import number
from orchestrator.screen import console, harmless

LONGEST_PHASE = 80
MOST_STEPS = 1e15
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
    """Progress on standard error: a bar on a terminal, plain lines in a pipe. `of_ranks`: of
    whom there are lines too, as --show says."""

    def __init__(self, of_ranks: str = "none") -> None:
        self.of_ranks = of_ranks
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

    def lines(self, lines: Sequence[LogLine]) -> None:
        """What ranks have printed, above the bar."""
        several = self.of_ranks == "all"
        shown = ((one.rank, at_last(one.text)) for one in lines)
        texts = (f"[{rank}] {text}" if several else text for rank, text in shown)
        if lines:
            self.console.print("\n".join(harmless(text) for text in texts))

    def show(self, event: Event) -> None:
        """One event; progress is shown for rank 0, which speaks for all ranks."""
        if isinstance(event, Launched):
            self.joined, self.ranks = set(), event.ranks
        if isinstance(event, Decided) and self.of_ranks in ("0", "all"):
            return  # rank 0 has it in its log
        if isinstance(event, TOLD) and not timeline.is_echo(event, self.warned):
            for line in timeline.words(event):
                self.note(line)
        if isinstance(event, Joined):
            self.joined.add(event.rank)
            if len(self.joined) == self.ranks:
                self.note(f"{timeline.joined(self.ranks, event)}, torch {event.torch}")
        elif isinstance(event, Told) and event.rank == 0:
            self.step(event)

    def step(self, event: Told) -> None:
        phase, step, steps = (
            in_a_line(event.phase or "") or "progress",
            event.step or 0,
            event.steps,
        )
        self.last[phase] = self.last.get(phase, Figures()).renewed(event)
        detail = self.last[phase].describe()
        if not self.progress.disable:
            done, total = drawn(step), None if steps is None else drawn(steps)
            if phase not in self.tasks:
                self.tasks[phase] = self.progress.add_task(phase, total=total, detail="")
            self.progress.update(self.tasks[phase], completed=done, total=total, detail=detail)
        elif worth_a_line(self.shown.get(phase), step, steps):
            self.shown[phase] = step
            self.note(f"{phase}: {step}/{steps or '?'} {detail}".rstrip())


def at_last(line: str) -> str:
    """What a terminal would show of it in the end: a progress bar writes over itself."""
    return line.rstrip("\r").rpartition("\r")[2]


def in_a_line(text: str) -> str:
    return " ".join(harmless(text).split())[:LONGEST_PHASE]


def drawn(step: float) -> float:
    """What a bar has room for: rich multiplies it."""
    return min(max(step, 0), MOST_STEPS)


def worth_a_line(last: float | None, step: float, steps: float | None) -> bool:
    """In a pipe: the first step, the last, and about every tenth part between."""
    if last is None or step == steps:
        return True
    return step - last >= max(1, (steps or 100) // 10)
