"""Write the files of a run: events.jsonl, the stack traces of ranks, and outcome.json."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from orch_node.agent.rank_signals import describe_position
from orch_node.atomic_write import private
from orch_node.disk import Appender, Reserve, describe_on_node
from orch_node.protocol import events, files, outcome
from orch_node.protocol.agent import RankStack
from orch_node.protocol.events import Event, Finished, UnreadableEvents
from orch_node.protocol.outcome import Outcome

RESERVED_NAME = ".outcome-room"
# Space that is reserved for outcome.json, and how much of it for each node.
OUTCOME_BYTES, OUTCOME_BYTES_PER_NODE = 1 << 16, 1 << 10


class EventLog:
    """The events of a run's ranks and, as those of rank -1, of its supervisor.

    The space for outcome.json is reserved at the start, so that the reason for the end can be
    recorded even on a full disk.
    """

    def __init__(self, run_dir: Path, nodes: Sequence[str]) -> None:
        """Open the files.

        Raises:
            OSError: if they cannot be written, or there is no space for outcome.json.
        """
        self.run_dir = run_dir
        self.node0 = nodes[0]
        self.outcome = Reserve(run_dir / RESERVED_NAME, OUTCOME_BYTES + OUTCOME_BYTES_PER_NODE * len(nodes))
        self.events = Appender(run_dir / files.EVENTS)
        self.launcher_output = Appender(run_dir / files.LAUNCHER_LOG)
        self.unreadable = UnreadableEvents()

    def problem(self) -> str:
        """Return why events can no longer be written, or ''."""
        error = self.events.problem or self.launcher_output.problem
        return describe_on_node(self.node0, self.run_dir, error) if error else ""

    def record(self, event: Event) -> None:
        """Write an event of the supervisor, with the current time."""
        self.events.write(events.render(replace(event, time=round(time.time(), 3))))

    def save_stack_traces(self, stacks: Mapping[int, RankStack]) -> dict[str, str]:
        """Write a file for each rank; return each rank's position in one line."""
        folder = self.run_dir / files.STACK_TRACES
        for rank, stack in stacks.items():
            kernel = "".join(f"{name}: {text}\n" for name, text in stack.kernel.items())
            text = f"{stack.stack}\n{kernel}".encode(errors="backslashreplace")
            with contextlib.suppress(OSError):  # on a full disk, which problem() reports
                folder.mkdir(mode=0o700, exist_ok=True)
                # Without a flush to the disk, which takes milliseconds for each of possibly thousands of files.
                with open(folder / f"rank-{rank}.txt", "wb", opener=private) as file:
                    file.write(text)
        return {str(rank): describe_position(stack) for rank, stack in sorted(stacks.items())}

    def end(self, ending: Outcome) -> None:
        """Record the end of the run, and write outcome.json."""
        for event in self.unreadable.events():
            self.record(event)
        self.record(Finished(state=ending.state))
        self.events.close()
        self.launcher_output.close()
        path = self.run_dir / files.OUTCOME
        try:
            self.outcome.become(path, outcome.render(ending).encode())
        except OSError:  # larger than the reserved space
            self.outcome.become(path, outcome.render(replace(ending, nodes={})).encode())
