"""Tells the supervisor how far this rank is; does nothing outside orch."""

from __future__ import annotations

import time

from orch_node.events import note, report

__all__ = ["Progress", "note", "report"]

EVERY_SECONDS = 1.0


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
