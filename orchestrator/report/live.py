"""The display of a training run while it is running."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from orch_node.protocol import events
from orch_node.protocol.outcome import Failure
from orch_node.streams import STDERR
from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from orchestrator.model.printable import counted
from orchestrator.report.output_lines import STATE_SECONDS, RankLines
from orchestrator.report.training import error_lines
from orchestrator.runs import timeline
from orchestrator.runs.logs import LogLine
from orchestrator.runs.measures import number
from orchestrator.screen import console, escape_control_chars, print_text

STARTING = "starting the ranks: they import torch and join the process group"
START_SECONDS = 3.0  # delay of the STARTING line in a pipe
LONGEST_PHASE = 80
MOST_STEPS = 1e15  # of a bar; rich multiplies them
# Events that show that the ranks have started, or that they are not starting at the moment.
ENDS_START = (events.Progress, events.Waiting, events.Refused, events.Failed, events.Stalled)
# Events that are printed while the run is running.
PRINTED_EVENTS = (*ENDS_START[1:], events.NodeNews, events.Decided, events.Warned, events.NodesLost, events.Restarting)


class LiveView(Progress):
    """Progress bars with the unfinished lines of ranks above them.

    Attributes:
        rank_lines: the lines of ranks.
        steps: the steps counted by orch, for a script that reports no progress.
        starting_since: when the ranks began to start, or None if they are not starting.
    """

    rank_lines: RankLines | None = None
    steps = ""
    starting_since: float | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the elements that are drawn below the printed lines."""
        if self.rank_lines and self.rank_lines.states:
            yield self.rank_lines
        elif self.steps:
            yield Text(self.steps)
        elif self.starting_since is not None:
            yield Text(f"{STARTING} ({time.monotonic() - self.starting_since:.0f} s)")
        yield from super().get_renderables()


class Screen:
    """Progress on standard error, as a bar on a terminal and as plain lines in a pipe, and the output of ranks."""

    def __init__(self, of_ranks: str = "none", *, keeps_stdout: bool = False) -> None:
        """Create the display.

        Args:
            of_ranks: the value of `--show`: the ranks whose output is printed as well.
            keeps_stdout: print what ranks write to standard output on standard error, because a JSON object will follow
                on standard output.
        """
        self.of_ranks = of_ranks
        self.keeps_stdout = keeps_stdout
        self.ranks = 0
        self.console = console()
        phase, detail = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[detail]}"))
        columns = (phase, BarColumn(), MofNCompleteColumn(), detail)
        hidden = not sys.stderr.isatty() or self.console.is_dumb_terminal
        self.progress = LiveView(*columns, console=self.console, transient=True, redirect_stdout=False, disable=hidden)
        self.task = self.progress.add_task("", total=None, visible=False, detail="")
        self.progress.rank_lines = self.rank_lines = RankLines(
            self.print_rank_lines,
            lambda line: f"[{line.rank}] " if of_ranks == "all" else "",
            is_live=not self.progress.disable,
        )
        self.joined: set[int] = set()
        self.failure: Failure | None = None  # the last one, which is explained if the ranks start again
        self.warned: set[str] = set()
        self.shown: dict[str, float] = {}
        # By phase, the newest one last: the event that began it in this attempt, and the last one with all figures.
        self.last: dict[str, tuple[events.Progress, events.Progress]] = {}
        self.printed: set[str] = set()  # the phases whose loss and speed rank 0 prints on this screen
        self.start_timer: threading.Timer | None = None

    def begin(self, lines: Iterable[str]) -> None:
        """Print the given lines and start the display."""
        for line in lines:
            self.note(line)
        self.progress.start()
        self.begin_start()

    def end(self) -> None:
        """Stop the display; in a pipe print the newest progress if its phase has not had a line yet."""
        self.end_start()
        self.progress.stop()
        if self.progress.disable and self.last and (phase := next(reversed(self.last))) not in self.shown:
            self.note(self.progress_line(phase))

    def begin_start(self) -> None:
        """Show that the ranks are starting: in place, or in a pipe with one line after START_SECONDS."""
        if self.progress.starting_since is None:
            self.progress.starting_since = time.monotonic()
            if self.progress.disable:
                self.start_timer = threading.Timer(START_SECONDS, self.note, (STARTING,))
                self.start_timer.daemon = True
                self.start_timer.start()

    def end_start(self) -> None:
        """Stop showing that the ranks are starting."""
        self.progress.starting_since = None
        if self.start_timer is not None:
            self.start_timer.cancel()

    def note(self, line: str) -> None:
        """Print a line above the bar."""
        self.console.print(escape_control_chars(line))

    def print_rank_lines(self, text: str, stream: str) -> None:
        """Print lines of ranks where they were written to; above the bar if that is on the same terminal."""
        if stream == STDERR or self.keeps_stdout or (not self.progress.disable and shares_terminal()):
            self.console.print(text)
        else:
            print_text(text)

    def lines(self, lines: Sequence[LogLine]) -> None:
        """Show lines that ranks have printed, above the bar."""
        self.end_start()
        self.rank_lines.add(lines)

    def show(self, event: events.Event) -> None:
        """Show one event; progress is shown for rank 0, which represents all ranks."""
        if isinstance(event, events.Launched):
            self.joined, self.ranks, self.failure = set(), event.ranks, None
            self.begin_start()
        elif isinstance(event, ENDS_START):
            self.end_start()
        is_printed = isinstance(event, events.Warned) or (isinstance(event, events.Decided) and not event.topic)
        if timeline.is_echo(event, self.warned) or (is_printed and self.of_ranks in ("all", str(event.rank))):
            return  # a warning, or a recipe's decision, that the rank prints as well
        self.explain_restart(event)
        if isinstance(event, PRINTED_EVENTS):
            for line in timeline.describe_event(event):
                self.note(line)
        match event:
            case events.Joined() if event.rank not in self.joined:
                self.joined.add(event.rank)
                if len(self.joined) == self.ranks:
                    self.end_start()
                    self.note(f"{timeline.joined(self.ranks, event)}, torch {event.torch}")
            case events.Progress(rank=0) if events.STEPS_PER_SECOND in event.figures:
                self.show_steps(event)
            case events.Progress(rank=0):
                self.step(event)

    def explain_restart(self, event: events.Event) -> None:
        """Show the error of the failed rank before its run starts again."""
        if isinstance(event, events.Failed):
            self.failure = event.failure
        elif isinstance(event, events.Restarting) and self.failure:
            for line in error_lines(self.failure.text, is_shown=self.of_ranks in ("all", str(self.failure.rank))):
                self.note(f"  {line}")

    def show_steps(self, event: events.Progress) -> None:
        """Show the steps that orch has counted, in place or after 30 seconds without output."""
        text = describe_steps(event)
        if not self.progress.disable:
            self.progress.steps = text
        elif text and self.rank_lines.seconds_since_print(0) >= STATE_SECONDS:
            self.rank_lines.printed_at[0] = time.monotonic()
            self.note(text)

    def step(self, event: events.Progress) -> None:
        """Show the progress of a phase as a bar, or as lines for its first, its last and about every tenth part."""
        phase, step, steps = " ".join(escape_control_chars(event.phase or "").split()), event.step or 0, event.steps
        phase = phase[:LONGEST_PHASE] or "progress"
        first, previous = self.last.pop(phase, (event, event))
        is_repeated = previous.step is None or step < previous.step
        loss, figures = previous.loss if event.loss is None else event.loss, {**previous.figures, **event.figures}
        self.last[phase] = (event if is_repeated else first, replace(event, loss=loss, figures=figures))
        if event.figures.get("printed") and self.of_ranks in ("0", "all"):
            self.printed.add(phase)
        if not self.progress.disable:
            self.progress.tasks[0].total = None if steps is None else min(max(steps, 0), MOST_STEPS)
            done = min(max(step, 0), MOST_STEPS)
            self.progress.update(self.task, description=phase, completed=done, visible=True, detail=self.detail(phase))
        elif event.figures.get("printed") and phase in self.printed:
            self.shown[phase] = step  # rank 0 has printed the same line
        elif phase not in self.shown or step == steps or step - self.shown[phase] >= max(1, (steps or 100) // 10):
            self.shown[phase] = step
            self.note(self.progress_line(phase))

    def detail(self, phase: str) -> str:
        """Return the remaining time of a phase, and its loss and speed unless rank 0 prints them on this screen."""
        first, newest = self.last[phase]
        speed = number(newest.figures.get("samples_per_second"))
        parts = []
        if newest.loss is not None and phase not in self.printed:
            parts.append(f"loss {events.format_loss(newest.loss)}")
        if speed is not None and phase not in self.printed:
            parts.append(f"{speed:.1f} samples/s")
        seconds = events.remaining_seconds(
            newest.time - first.time, first=first.step or 0, step=newest.step or 0, steps=newest.steps or 0
        )
        if seconds is not None:
            parts.append(f"{events.format_seconds(seconds)} left")
        return ", ".join(parts)

    def progress_line(self, phase: str) -> str:
        """Return the newest progress of a phase as a line."""
        newest = self.last[phase][1]
        step = f"{newest.step or 0}/{newest.steps}" if newest.steps else f"step {newest.step or 0}"
        return f"{phase}: {step} {self.detail(phase)}".rstrip()


def shares_terminal() -> bool:
    """Return whether standard output and standard error are the same terminal."""
    try:
        return os.ttyname(sys.stdout.fileno()) == os.ttyname(sys.stderr.fileno())
    except OSError:  # one of them is a file or a pipe
        return False


def describe_steps(event: events.Progress) -> str:
    """Return the steps that orch has counted and their rate, such as `64 steps, 2.1/s`."""
    rate = number(event.figures.get(events.STEPS_PER_SECOND))
    if event.step is None or not rate or rate < 0:
        return ""
    speed = f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each"
    return f"{counted(f'{event.step:.0f}', 'step')}, {speed}"
