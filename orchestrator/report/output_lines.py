"""The output lines of ranks, to someone who watches a run, and of a command on several nodes."""

from __future__ import annotations

import itertools
import operator
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from orch_node.streams import STDERR
from orch_node.tail import last_state
from rich.console import Console, ConsoleOptions
from rich.text import Text

from orchestrator.model.hosts import grouped, ranges
from orchestrator.runs.logs import LogLine
from orchestrator.screen import escape_control_chars, print_text

STATE_SECONDS = 30.0  # interval between printed states of an unfinished line, if not on a terminal
MOST_STATES = 8  # ranks whose unfinished lines are shown at once
MAX_LINE_BYTES = 1 << 20
STDERR_FD = 2


@dataclass(eq=False)
class RankLines:
    """A display that prints finished lines and keeps the newest state of unfinished ones.

    On a terminal the states are a renderable that is drawn below the lines; elsewhere the state of
    a progress bar is printed every 30 seconds.

    Attributes:
        print_lines: prints text that ranks have written to a stream, stdout or stderr.
        label: returns what precedes a line.
        is_live: whether the states are drawn on a terminal.
        states: the last state of each unfinished line, by rank and stream.
        printed_at: the monotonic time of each rank's last printed line, by rank.
    """

    print_lines: Callable[[str, str], None]
    label: Callable[[LogLine], str]
    is_live: bool
    states: dict[tuple[int, str], str] = field(default_factory=dict)
    printed_at: dict[int, float] = field(default_factory=dict)

    def add(self, lines: Sequence[LogLine]) -> None:
        """Print the lines that are finished or due, consecutive ones of a stream in one piece.

        The state of an unfinished line goes to standard error: the line itself follows.
        """
        texts = [(line.stream if line.finished else STDERR, self.text_to_print(line)) for line in lines]
        due = ((stream, text) for stream, text in texts if text is not None)
        for stream, group in itertools.groupby(due, key=operator.itemgetter(0)):
            self.print_lines("\n".join(text for _, text in group), stream)

    def text_to_print(self, line: LogLine) -> str | None:
        """Return the text of a finished line or of a state that is due, otherwise None."""
        text, key = escape_control_chars(self.label(line) + last_state(line.text)), (line.rank, line.stream)
        if line.finished:
            self.states.pop(key, None)
        else:
            is_due = key in self.states and self.seconds_since_print(line.rank) >= STATE_SECONDS
            self.states[key] = text
            if self.is_live or not is_due:  # the rest of a line that has just begun may be on its way
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


class NodeOutput:
    """A display of whole lines, each with the name of its node, which several threads may fill."""

    def __init__(self, nodes: Sequence[str], *, gather: bool) -> None:
        """Create the display.

        Args:
            nodes: the names of the nodes.
            gather: print the output at the end, and that of nodes with identical output once.
        """
        self.gather = gather
        self.lock = threading.Lock()
        self.unfinished: dict[tuple[str, int], bytes] = {}
        self.gathered: dict[str, list[tuple[int, str]]] = {node: [] for node in nodes}

    def receive(self, node: str, stream: int, part: bytes) -> None:
        """Add a part of a node's output; print or store the lines that it completes."""
        with self.lock:
            *lines, self.unfinished[node, stream] = (self.unfinished.get((node, stream), b"") + part).split(b"\n")
            if len(self.unfinished[node, stream]) > MAX_LINE_BYTES:
                lines.append(self.unfinished.pop((node, stream)))
            for line in lines:
                self.add_line(node, stream, line)

    def add_line(self, node: str, stream: int, line: bytes) -> None:
        text = line.decode(errors="replace").removesuffix("\r")
        if self.gather:
            self.gathered[node].append((stream, text))
        else:
            print_text(f"{node}: {text}", err=stream == STDERR_FD)

    def end(self) -> None:
        """Print the lines without a newline at their end, and the gathered output."""
        for (node, stream), line in self.unfinished.items():
            if line:
                self.add_line(node, stream, line)
        key = operator.itemgetter(0)
        outputs = grouped((tuple(sorted(gathered, key=key)), node) for node, gathered in self.gathered.items())
        for output, nodes in outputs.items():
            for stream, text in output:
                print_text(f"{','.join(ranges(tuple(nodes)))}: {text}", err=stream == STDERR_FD)
