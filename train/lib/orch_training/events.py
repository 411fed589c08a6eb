"""Tells the supervisor how far this rank is; does nothing outside orch."""

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
    """Progress of one phase, at most one event a second unless `now`."""

    def __init__(self, phase: str, steps: int) -> None:
        self.phase = phase
        self.steps = steps
        self.told = 0.0

    def tell(self, step: int, *, now: bool = False, **fields: object) -> None:
        if now or time.monotonic() - self.told >= EVERY_SECONDS:
            report("progress", phase=self.phase, step=step, steps=self.steps, **fields)
            self.told = time.monotonic()
