"""Tells the supervisor that a rank gets on, also where its script reports nothing.

What counts are collective operations, sends and receives, optimizer steps and what the rank writes
to its log; equal numbers are not told twice, so a rank that hangs is silent, and its last numbers
say where it is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType

from orch_node.events import send
from orch_node.protocol.events import Heartbeat
from orch_node.rank import communication

SECONDS = 2.0


def begin(torch: ModuleType, steps: Callable[[], int], callbacks: Sequence[Callable[[], None]]) -> None:
    """Start the thread that tells; it never keeps the process alive. `steps`: made so far.
    `callbacks`: called as often."""
    arguments = (torch, steps, callbacks)
    threading.Thread(target=beat, args=arguments, name="orch-heartbeat", daemon=True).start()


def current(torch: ModuleType, steps: int) -> Heartbeat:
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


def beat(torch: ModuleType, steps: Callable[[], int], callbacks: Sequence[Callable[[], None]]) -> None:
    told = Heartbeat()
    while True:
        for callback in callbacks:
            callback()
        now = current(torch, steps())
        if now != told:
            send(now)
            told = now
        time.sleep(SECONDS)
