"""Tell the supervisor that a rank makes progress, even if its script reports nothing.

Progress is measured in collective operations, sends and receives, optimizer steps and bytes of the
rank's log. Unchanged numbers are not sent again, so a rank that hangs is silent, and its last
numbers tell where it is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType

from orch_node import events
from orch_node.protocol.events import STEPS_PER_SECOND, Heartbeat, Progress
from orch_node.rank import communication

SECONDS = 2.0
MAX_REPORTS = 2000  # about so many progress reports in all: a long run reports less often


def begin(torch: ModuleType, steps: Callable[[], int], callbacks: Sequence[Callable[[], None]]) -> None:
    """Start a daemon thread that sends heartbeats.

    Args:
        torch: the torch module.
        steps: returns the number of optimizer steps so far.
        callbacks: called before each heartbeat.
    """
    arguments = (torch, steps, callbacks)
    threading.Thread(target=send_heartbeats, args=arguments, name="orch-heartbeat", daemon=True).start()


def current(torch: ModuleType, steps: int) -> Heartbeat:
    """Return how far this rank is now."""
    return Heartbeat(
        collectives=communication.collectives(torch),
        world_collectives=communication.world_collectives(torch),
        point_to_point=communication.COUNTS.point_to_point,
        steps=steps,
        log=log_size(),
    )


def log_size() -> int:
    try:
        return os.fstat(1).st_size
    except OSError:  # the script has closed its standard output
        return 0


def send_heartbeats(torch: ModuleType, steps: Callable[[], int], callbacks: Sequence[Callable[[], None]]) -> None:
    last_sent = Heartbeat()
    while True:
        for callback in callbacks:
            callback()
        heartbeat = current(torch, steps())
        if heartbeat != last_sent:
            events.send(heartbeat)
            last_sent = heartbeat
        time.sleep(SECONDS)


class StepProgress:
    """Reports the number of steps and their rate, until the script reports progress itself."""

    def __init__(self, steps: Callable[[], int]) -> None:
        self.steps = steps
        self.began = time.monotonic()
        self.reported_at = self.began
        self.reported_steps = 0

    def report(self) -> None:
        """Report if there are new steps and the last report is old enough."""
        now, steps = time.monotonic(), self.steps()
        seconds = now - self.reported_at
        if events.PROGRESS_REPORTED or seconds < max(SECONDS, (now - self.began) / MAX_REPORTS):
            return
        if steps > self.reported_steps:
            rate = round((steps - self.reported_steps) / seconds, 3)
            events.send(Progress(phase="train", step=steps, figures={STEPS_PER_SECOND: rate}))
        self.reported_at, self.reported_steps = now, steps
