"""Reports a rank's progress to the supervisor; does nothing outside orch."""

from __future__ import annotations

import os
import time

from orch_node.events import PIPE, note, report

__all__ = ["Progress", "is_watched", "note", "report"]

EVERY_SECONDS = 1.0


def is_watched() -> bool:
    """Return whether orch has started this rank, and prints its result."""
    return PIPE in os.environ


class Progress:
    """The progress of one phase, reported at most once a second unless `now` is set."""

    def __init__(self, phase: str, steps: int) -> None:
        self.phase = phase
        self.steps = steps
        self.last_report = 0.0

    def report(self, step: int, *, now: bool = False, **fields: object) -> None:
        if now or time.monotonic() - self.last_report >= EVERY_SECONDS:
            report("progress", phase=self.phase, step=step, steps=self.steps, **fields)
            self.last_report = time.monotonic()
