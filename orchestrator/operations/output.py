"""What the ranks print, as it comes, beside the events of a run that is watched."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from copy import copy

from orchestrator.errors import OrchError, RequestError
from orchestrator.runs import stack_traces
from orchestrator.runs.logs import LogLine
from orchestrator.targets.interface import RunHandle, Tell

ALL, NONE = "all", "none"
AT_ONCE = 500  # lines that are shown together, if so many have come
MOST = 10_000  # lines that wait for a slow terminal
LAST_SECONDS = 10.0  # for what is still on its way when the run has ended

Show = Callable[[Sequence[LogLine]], None]


def check_shown(shown: str, ranks: int) -> None:
    """Raises RequestError for what --show does not know, of a run of so many ranks."""
    if shown in (ALL, NONE):
        return
    if not (shown.isascii() and shown.isdigit()):
        raise RequestError(f"--show {shown}: it is the number of a rank, all, or none.")
    if int(shown) >= ranks:
        raise RequestError(f"--show {shown}: the run has ranks 0 to {ranks - 1}.", hint="--show all shows them all.")


class RanksOutput:
    """Gives the lines of one rank, or of all, to `show`. `shown`: what --show says; `tell` is
    told once, and at once, that lines may not come."""

    def __init__(self, handle: RunHandle, shown: str, show: Show, tell: Tell) -> None:
        self.handle = handle
        self.shown = shown
        self.show = show
        self.tell = tell
        self.untold = threading.Lock()
        self.arrived: queue.Queue[LogLine | None] = queue.Queue(maxsize=MOST)
        self.thread: threading.Thread | None = None

    def begin(self) -> None:
        """To be called at the run's events, from the first one on."""
        if self.thread is None and self.shown != NONE:
            followed = copy(self.handle)
            followed.tell = self.tell_once
            threading.Thread(target=self.read, args=(followed,), daemon=True).start()
            self.thread = threading.Thread(target=self.print, daemon=True)
            self.thread.start()

    def end(self) -> bool:
        """Wait for the last lines; -> whether they have come."""
        if self.thread is not None:
            self.thread.join(LAST_SECONDS)
        return self.thread is None or not self.thread.is_alive()

    def read(self, handle: RunHandle) -> None:
        rank = None if self.shown == ALL else int(self.shown)
        try:
            for line in stack_traces.without(handle.logs(rank=rank, follow=True)):
                if self.arrived.full():
                    self.tell_once("More is printed than can be shown as it comes.")
                self.arrived.put(line)
        except OrchError as error:
            self.tell_once(error.message)
        finally:
            self.arrived.put(None)

    def tell_once(self, why: str) -> None:
        """From any thread."""
        if self.untold.acquire(blocking=False):
            who = "the ranks print" if self.shown == ALL else f"rank {self.shown} prints"
            run = self.handle.record.run_id
            self.tell(f"what {who} may be late or missing here: {why} All of it: orch logs {run}")

    def print(self) -> None:
        for lines in self.batches():
            self.show(lines)

    def batches(self) -> Iterator[list[LogLine]]:
        """All lines that have come, so many at once as there are."""
        lines: list[LogLine] = []
        while (line := self.arrived.get()) is not None:
            lines.append(line)
            if self.arrived.empty() or len(lines) == AT_ONCE:
                yield lines
                lines = []
        yield lines
