"""The output lines of ranks as shown to someone who watches a run."""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Iterator, Sequence

from orch_node.streams import STDERR
from orch_node.tail import last_state
from rich.console import Console, ConsoleOptions
from rich.text import Text

from orchestrator.runs.logs import LogLine
from orchestrator.screen import harmless

STATE_SECONDS = 30.0  # interval between printed states of an unfinished line, if not on a terminal
MOST_STATES = 8  # ranks whose unfinished lines are shown at once


class RankLines:
    """A display that prints finished lines and keeps the newest state of unfinished ones.

    On a terminal the states are a renderable that is drawn below the lines; elsewhere the state of
    a progress bar is printed every 30 seconds.

    Attributes:
        states: the last state of each unfinished line, by rank and stream.
        printed_at: the monotonic time of each rank's last printed line, by rank.
    """

    def __init__(
        self, print_lines: Callable[[str, str], None], label: Callable[[LogLine], str], *, is_live: bool
    ) -> None:
        """Create the display.

        Args:
            print_lines: prints text that ranks have written to a stream, stdout or stderr.
            label: returns what precedes a line.
            is_live: whether the states are drawn on a terminal.
        """
        self.print_lines = print_lines
        self.label = label
        self.is_live = is_live
        self.states: dict[tuple[int, str], str] = {}
        self.printed_at: dict[int, float] = {}

    def add(self, lines: Sequence[LogLine]) -> None:
        """Print the lines that are finished or due, consecutive ones of a stream in one piece.

        The state of an unfinished line goes to standard error: the line itself follows.
        """
        texts = [
            (text, line.stream if line.finished else STDERR)
            for line in lines
            if (text := self.text_to_print(line)) is not None
        ]
        for stream, group in itertools.groupby(texts, key=operator.itemgetter(1)):
            self.print_lines("\n".join(text for text, _ in group), stream)

    def text_to_print(self, line: LogLine) -> str | None:
        """Return the text of a finished line or of a state that is due, otherwise None."""
        text = harmless(self.label(line) + last_state(line.text))
        if line.finished:
            self.states.pop((line.rank, line.stream), None)
        else:
            self.states[line.rank, line.stream] = text
            if self.is_live or self.seconds_since_print(line.rank) < STATE_SECONDS:
                return None
        self.printed_at[line.rank] = time.monotonic()
        return text

    def seconds_since_print(self, rank: int) -> float:
        """Return the seconds since a rank's last printed line; 0 at the first call for a rank."""
        now = time.monotonic()
        return now - self.printed_at.setdefault(rank, now)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        for text in tuple(self.states.values())[:MOST_STATES]:
            yield Text(text, no_wrap=True, overflow="ellipsis")
