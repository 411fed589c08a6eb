"""Progress of a script that reports none: rank 0 counts the steps of its optimizers."""

from __future__ import annotations

import time
from collections.abc import Callable

from orch_node import events
from orch_node.protocol.events import STEPS_PER_SECOND, Progress

SECONDS = 2.0  # between reports at first; later as many in all as REPORTS
REPORTS = 2000


class StepProgress:
    """Reports the number of steps and their rate, until the script reports progress itself."""

    def __init__(self, steps: Callable[[], int]) -> None:
        self.steps = steps
        self.began = time.monotonic()
        self.reported_at = self.began
        self.reported_steps = 0

    def look(self) -> None:
        """Report if there are new steps and the last report is old enough."""
        now, steps = time.monotonic(), self.steps()
        seconds = now - self.reported_at
        if events.PROGRESS_REPORTED or seconds < max(SECONDS, (now - self.began) / REPORTS):
            return
        if steps > self.reported_steps:
            rate = round((steps - self.reported_steps) / seconds, 3)
            events.send(Progress(phase="train", step=steps, figures={STEPS_PER_SECOND: rate}))
        self.reported_at, self.reported_steps = now, steps
