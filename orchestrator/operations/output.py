"""The output of ranks: filtered, and shown next to the events of a watched run."""

from __future__ import annotations

import heapq
import itertools
import operator
import queue
import re
import threading
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace
from typing import Any

from orch_node.protocol.events import Event, Waiting

from orchestrator.errors import OrchError, RequestError
from orchestrator.report.live import Screen
from orchestrator.report.training import failure_lines
from orchestrator.runs import logs, store
from orchestrator.runs.logs import LogLine as LogLine
from orchestrator.runs.outcome import RunOutcome
from orchestrator.targets.interface import RunHandle

ALL, NONE = "all", "none"
MAX_BATCH = 500  # lines that are shown together
MAX_QUEUED = 10_000  # lines that wait for a slow terminal
DRAIN_SECONDS = 10.0  # for lines that arrive after the end of the run


def compile_pattern(pattern: str | None) -> re.Pattern[str]:
    """Return the regular expression of --grep.

    Raises:
        RequestError: if it is invalid.
    """
    try:
        return re.compile(pattern or "")
    except (re.error, OverflowError, RecursionError) as error:
        raise RequestError.about("invalid-expression", pattern=pattern, error=error) from None


def check_shown(shown: str, ranks: int) -> None:
    """Raise RequestError if --show names no rank of a run with this number of ranks."""
    if shown in (ALL, NONE):
        return
    if not (shown.isascii() and shown.isdigit()):
        raise RequestError(f"--show {shown}: expected a rank, all or none.")
    if int(shown) >= ranks:
        raise RequestError(f"--show {shown}: the run has ranks 0 to {ranks - 1}.", hint="To show all: --show all")


def describe_end(outcome: RunOutcome) -> str:
    """Return why a run ended without success, without the hints of its explanations."""
    explanations = tuple(replace(explanation, hint="") for explanation in outcome.explanations)
    return "\n".join(failure_lines(replace(outcome, explanations=explanations), "none"))


class RanksOutput:
    """The output of one rank or all ranks on a screen, which are read while the events of the run are followed.

    The lines come in batches, and one warning if some may be late or missing.
    """

    def __init__(self, handle: RunHandle, screen: Screen) -> None:
        self.handle = handle
        self.screen = screen
        self.shown = screen.of_ranks
        self.may_warn = threading.Lock()  # free until the warning was given
        self.arrived: queue.Queue[LogLine | None] = queue.Queue(maxsize=MAX_QUEUED)
        self.thread: threading.Thread | None = None

    def follow(self) -> None:
        """Show the events of the run until it ends, and the ranks' output from its start on.

        If the run has ended before, events and output are shown in the order of time.
        """
        events = self.handle.events()
        for event in events:
            if self.thread is None and self.shown != NONE and not isinstance(event, Waiting):
                if store.load(self.handle.folder).has_ended:
                    self.replay(itertools.chain((event,), events))
                    return
                threading.Thread(target=self.read, daemon=True).start()
                self.thread = threading.Thread(target=self.print, daemon=True)
                self.thread.start()
            self.screen.show(event)

    def replay(self, events: Iterable[Event]) -> None:
        """Show the events and the output of a run that has ended, in the order of time."""
        sources: list[Iterable[Any]] = [events, self.read_lines()]
        items = heapq.merge(*sources, key=operator.attrgetter("time"))
        for is_output, group in itertools.groupby(items, key=lambda item: isinstance(item, LogLine)):
            if not is_output:
                for event in group:
                    self.screen.show(event)
            while lines := list(itertools.islice(group, MAX_BATCH)):
                self.screen.lines(lines)

    def end(self) -> bool:
        """Wait for the last lines and return whether they have arrived."""
        if self.thread is not None:
            self.thread.join(DRAIN_SECONDS)
        return self.thread is None or not self.thread.is_alive()

    def read_lines(self) -> Iterator[LogLine]:
        """Yield the lines of the shown ranks until the run has ended, and warn once if some may be missing."""
        reader = copy(self.handle)
        reader.notify = self.warn_once
        rank = None if self.shown == ALL else int(self.shown)
        try:
            yield from logs.without_stack_traces(reader.logs(rank=rank, follow=True))
        except OrchError as error:
            self.warn_once(error.message)

    def read(self) -> None:
        try:
            for line in self.read_lines():
                if self.arrived.full():
                    self.warn_once("The ranks print faster than the terminal can show.")
                self.arrived.put(line)
        finally:
            self.arrived.put(None)

    def warn_once(self, reason: str) -> None:
        """Warn that lines may be late or missing. Any thread may call this."""
        if self.may_warn.acquire(blocking=False):
            source = "all ranks" if self.shown == ALL else f"rank {self.shown}"
            command = f"orch logs {store.cli_arguments(self.handle.folder)}"
            text = f"output of {source} may be late or missing: {reason.removesuffix('.')}. Complete output: {command}"
            self.screen.note(text)

    def print(self) -> None:
        """Show the arrived lines, as many together as there are."""
        lines: list[LogLine] = []
        while (line := self.arrived.get()) is not None:
            lines.append(line)
            if self.arrived.empty() or len(lines) == MAX_BATCH:
                self.screen.lines(lines)
                lines = []
        self.screen.lines(lines)
