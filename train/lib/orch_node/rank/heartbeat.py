"""Reports of a rank's progress to the supervisor, even if its script reports nothing.

Progress is measured in collective operations, sends and receives, remote calls, optimizer steps and
bytes of the rank's log. Unchanged numbers are not sent again, so a rank that hangs sends nothing, and its last
numbers show where it is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from orch_node import events
from orch_node.agent.rank_signals import size_of
from orch_node.protocol import files
from orch_node.protocol.events import STEPS_PER_SECOND, Heartbeat, Progress
from orch_node.rank import communication

SECONDS = 2.0
RANK_LOG = Path(os.environ.get("ORCH_RUN_DIR", ""), files.rank_log(int(os.environ.get("RANK", "0"))))
IDLE_SECONDS = 20.0  # without progress, after which a rank that uses no CPU is idle
IDLE_CPU_SHARE = 0.2  # of one core; a rank that waits in a collective of ccl polls and sleeps
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
    pending = communication.pending(torch)
    counts = communication.collectives(torch)
    counts.subtract(pending)
    return Heartbeat(
        collectives=sum(counts.values()),
        world_collectives=counts[communication.WORLD],
        groups=communication.newest_groups(counts),
        point_to_point=communication.COUNTS.point_to_point + communication.COUNTS.remote_calls,
        steps=steps,
        log=size_of(RANK_LOG),
    )


def send_heartbeats(torch: ModuleType, steps: Callable[[], int], callbacks: Sequence[Callable[[], None]]) -> None:
    last_sent = Heartbeat()
    sent_at, cpu_then = time.monotonic(), time.process_time()
    while True:
        for callback in callbacks:
            callback()
        heartbeat = current(torch, steps())
        if heartbeat != replace(last_sent, idle=False):
            events.send(heartbeat)
            last_sent = heartbeat
            sent_at, cpu_then = time.monotonic(), time.process_time()
        elif not last_sent.idle:
            seconds, cpu_seconds = time.monotonic() - sent_at, time.process_time() - cpu_then
            if seconds >= IDLE_SECONDS and cpu_seconds < IDLE_CPU_SHARE * seconds:
                last_sent = replace(heartbeat, idle=True)
                events.send(last_sent)
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
