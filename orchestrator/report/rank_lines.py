"""The output lines of ranks as shown to someone who watches a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

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
        states: the last state of each rank's unfinished line, by rank.
        printed_at: the monotonic time of each rank's last printed line, by rank.
    """

    def __init__(self, print_text: Callable[[str], None], label: Callable[[LogLine], str], *, is_live: bool) -> None:
        self.print_text = print_text
        self.label = label
        self.is_live = is_live
        self.states: dict[int, str] = {}
        self.printed_at: dict[int, float] = {}

    def add(self, lines: Sequence[LogLine]) -> None:
        """Print the lines that are finished or due, in one piece."""
        texts = [text for line in lines if (text := self.text_to_print(line)) is not None]
        if texts:
            self.print_text("\n".join(texts))

    def text_to_print(self, line: LogLine) -> str | None:
        """Return the text of a finished line or of a state that is due, otherwise None."""
        text = harmless(self.label(line) + last_state(line.text))
        if line.finished:
            self.states.pop(line.rank, None)
        else:
            self.states[line.rank] = text
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
