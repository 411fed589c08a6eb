"""Find in the output of a launcher why it has ended, and which rank it found killed."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path

from orch_node.login_shell import START_MARKER
from orch_node.protocol.events import Exited, Started
from orch_node.protocol.layout import RunLayout
from orch_node.tail import last_text

MAX_LINE_CHARACTERS = 300
LOG_CHARACTERS = 20_000  # of the end of the log
# Intel MPI; MPICH, which names a signal like an exit code; Open MPI.
KILLED_RANKS = (
    re.compile(r"RANK (?P<rank>\d+) PID (?P<pid>\d+) RUNNING AT \S+\s+=\s+KILLED BY SIGNAL: (?P<signal>\d+)"),
    re.compile(r"= +PID (?P<pid>\d+) RUNNING AT \S+\s+=\s+EXIT CODE: (?P<signal>\d+)\n"),
    re.compile(r"rank (?P<rank>\d+) with PID (?P<pid>\d+) on\s+node\s+\S+\s+exited on\s+signal\s+(?P<signal>\d+)"),
)
# What ssh says, and what hydra and PRRTE say about a node that they cannot reach.
SSH_ERRORS = re.compile(
    r"Host key verification failed|Permission denied \(|Could not resolve hostname|Connection (?:refused|timed out)"
    r"|Connection (?:closed|reset) by|No route to host|Network is unreachable|REMOTE HOST IDENTIFICATION HAS CHANGED"
)
LOST = "the daemon on {} has ended"
NODE_ERRORS = (
    (re.compile(r"Unable to run \S+ on (\S+)"), "{} cannot be reached"),
    (re.compile(r"Downstream from host (\S+) exited abnormally"), LOST),
    (re.compile(r"lost communication with a remote daemon.{1,300}?Remote daemon: .* on node (\S+)", re.DOTALL), LOST),
    (re.compile(r"daemon failed to report back.{1,900}?Remote host: +(\S+)", re.DOTALL), LOST),
)
# Lines that frame others, warnings, positions in the source of hydra, and what follows a failure.
NO_REASON = re.compile(
    r"[\W_]*$|\[?W\d{4} |.*\b(?:WARNING|Warning)\b|.*\.(?:c|cpp):\d+\)"
    r"|.*(?:Trying to close other|CLEANING UP REMAINING|YOU CAN IGNORE)"
)
HYDRA_PREFIX = re.compile(r"^\[\w+(?::\d+)*@(\S+?)\] ")


class LauncherLog:
    """The log of a launcher: its messages, without the events of ranks."""

    def __init__(self, path: Path, layout: RunLayout) -> None:
        """Read a log.

        Args:
            path: of the file.
            layout: which rank runs on which node.
        """
        self.path = path
        self.layout = layout
        self.begin = path.stat().st_size if path.exists() else 0  # earlier attempts write to the same file

    def text(self) -> str:
        """Return the end of the log since this object was made, '' if there is none."""
        try:
            size = self.path.stat().st_size - self.begin
            text = last_text(self.path, min(LOG_CHARACTERS, size)) if size > 0 else ""
            return text.replace(START_MARKER.decode(), "")
        except OSError:
            return ""

    def reason(self) -> str:
        """Return why the launcher has ended, else its last line that may be a reason, else ''."""
        text = self.text()
        lines = [line.strip() for line in text.splitlines()]
        nodes = [template.format(match[1]) for pattern, template in NODE_ERRORS if (match := pattern.search(text))]
        reasons = [*nodes[:1], *[line for line in lines if SSH_ERRORS.search(line)][-1:]]
        if not reasons:
            reasons = [HYDRA_PREFIX.sub(r"\1: ", line) for line in lines if not NO_REASON.match(line)][-1:]
        reason = ": ".join(line[:MAX_LINE_CHARACTERS] for line in reasons)
        for node in self.layout.nodes:  # launchers print their addresses
            if node.address:
                reason = re.sub(rf"(?<![\w.:]){re.escape(node.address)}(?!\.?\w|:\w)", node.name, reason)
        return reason

    def killed_ranks(self, started: Mapping[int, Started]) -> list[Exited]:
        """Return the ends of ranks that the launcher found killed.

        Launchers name only the process that they have started: the wrapper of the rank, which cannot
        report its own end.

        Args:
            started: the reports of the ranks' starts.
        """
        text, ends = self.text(), []
        for match in (match for pattern in KILLED_RANKS for match in pattern.finditer(text)):
            pid, number = int(match["pid"]), int(match["signal"])
            ranks = [rank for rank, event in started.items() if event.wrapper == pid]
            if "rank" in match.re.groupindex:
                ranks = [int(match["rank"])]
            if len(ranks) == 1 and number in signal.valid_signals() and 0 <= ranks[0] < self.layout.world_size:
                node = self.layout.placement(ranks[0]).node
                ends.append(Exited(rank=ranks[0], node=node, signal=signal.Signals(number).name))
        return ends
