"""What the supervisor writes down: events.jsonl, the stack traces of ranks, outcome.json."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from orch_node import whole_files
from orch_node.agent.stack_traces import where
from orch_node.disk import Appender, Reserve, trouble
from orch_node.protocol import events, files, outcome
from orch_node.protocol.agent import RankStack
from orch_node.protocol.events import Event, Finished, UnreadableEvent, UnreadableEvents
from orch_node.protocol.outcome import Outcome

NOT_READ = b"orch: not read: "
LONGEST = 4096  # bytes of a line that could not be read
MOST_LINES = 1000  # of them that are kept
RESERVED = ".outcome-room"
# Of outcome.json, and for each node of it.
ROOM, ROOM_OF_A_NODE = 1 << 16, 1 << 10


class EventLog:
    """events.jsonl holds the ranks' events and, as those of rank -1, the supervisor's own.

    Whatever becomes of the disk, the reason of the end is kept: outcome.json has its room from the
    beginning. Raises OSError where there is none.
    """

    def __init__(self, run_dir: Path, nodes: Sequence[str]) -> None:
        self.run_dir = run_dir
        self.node0 = nodes[0]
        self.outcome = Reserve(run_dir / RESERVED, ROOM + ROOM_OF_A_NODE * len(nodes))
        self.events = Appender(run_dir / files.EVENTS)
        self.words = Appender(run_dir / files.LAUNCHER_LOG)
        self.left_out = UnreadableEvents()
        self.not_read = 0

    def problem(self) -> str:
        """Why the run cannot be told of any more, or nothing."""
        found = self.events.problem or self.words.problem
        return trouble(self.node0, self.run_dir, found) if found else ""

    def tell(self, event: Event) -> None:
        self.events.write(events.render(replace(event, time=round(time.time(), 3))))

    def leave_out(self, left: UnreadableEvent, line: bytes) -> None:
        """An event that could not be read: its line goes to the launcher's words, marked, so that
        nobody takes it for an event there; that it was left out is told once, at the end."""
        self.left_out.add(left)
        self.not_read += 1
        if self.not_read > MOST_LINES:
            return
        self.words.write(NOT_READ + line[:LONGEST].rstrip(b"\n") + b"\n")

    def keep_stack_traces(self, answers: Mapping[int, RankStack]) -> dict[str, str]:
        """A file for each rank; -> rank -> where it stands, in one line."""
        folder = self.run_dir / files.STACK_TRACES
        for rank, answer in answers.items():
            kernel = "".join(f"{name}: {text}\n" for name, text in answer.kernel.items())
            text = f"{answer.stack}\n{kernel}".encode(errors="backslashreplace")
            with contextlib.suppress(OSError):  # a full disk; that is told elsewhere
                folder.mkdir(mode=0o700, exist_ok=True)
                whole_files.write(folder / f"rank-{rank}.txt", text)
        return {str(rank): where(answer) for rank, answer in sorted(answers.items())}

    def end(self, ending: Outcome) -> None:
        for left in self.left_out.events():
            self.tell(left)
        self.tell(Finished(state=ending.state))
        self.events.close()
        self.words.close()
        try:
            self.write(ending)
        except OSError:  # more than its room: without what each node says
            self.write(replace(ending, nodes={}))

    def write(self, ending: Outcome) -> None:
        self.outcome.become(self.run_dir / files.OUTCOME, outcome.render(ending).encode())
