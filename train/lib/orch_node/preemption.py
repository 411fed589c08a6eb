"""Making room: the run has been told to end soon, and is to go on later from a checkpoint.

    from orch_node import preemption

    for step, batch in enumerate(batches, start=1):
        ...                              # the step
        if preemption.requested():       # on all ranks the same answer
            save(step)                   # the script's own checkpoint
            preemption.end(step)

The signal may reach one rank only, so the ranks ask each other, about once a second, by one small
all-reduce. Without orch nothing is ever requested, and nothing is sent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

from orch_node import stack_signal
from orch_node.events import send
from orch_node.protocol.events import Preempted
from orch_node.protocol.outcome import EX_TEMPFAIL
from orch_node.reach import BY_STEP

SECONDS = 1.0  # between two looks at the other ranks, about


class Agreement:
    """What the ranks know together. `collectives`: how many it has taken."""

    def __init__(self) -> None:
        self.told = False  # this rank has got the signal
        self.agreed = False
        self.collectives = 0
        self.listens = False
        self.calls = 0  # since the ranks have asked each other
        self.every = 1  # the calls from one look to the next: the same number on all ranks
        self.looked = time.monotonic()

    def take(self, number: int, frame: FrameType | None) -> None:
        self.told = True

    def ask(self) -> bool:
        number = signal_told()
        if number and not self.agreed:
            self.listen(number)
            self.calls += 1
            if self.calls >= self.every:
                self.look()
        return self.agreed

    def listen(self, number: int) -> None:
        """From the first call on: before it there is nothing to write down."""
        if self.listens or threading.current_thread() is not threading.main_thread():
            return
        self.listens = True
        signal.signal(number, self.take)
        signal.siginterrupt(number, False)
        if in_slurm_job() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self.take)
            signal.siginterrupt(signal.SIGTERM, False)

    def look(self) -> None:
        """Ask the other ranks; the slowest one's time says when to do so again."""
        now = time.monotonic()
        told, seconds = self.of_all(float(self.told), now - self.looked)
        self.agreed = told > 0
        self.every = calls_in(SECONDS, self.calls, seconds)
        self.calls, self.looked = 0, now

    def of_all(self, told: float, seconds: float) -> tuple[float, float]:
        """The largest of each, over all ranks."""
        torch = sys.modules.get("torch")
        if torch is None or not grouped(torch):
            return told, seconds
        largest = torch.tensor([told, seconds], dtype=torch.float32, device=group_device(torch))
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
        self.collectives += 1
        return float(largest[0]), float(largest[1])


def in_slurm_job() -> bool:
    """Return whether Slurm sends SIGTERM to this rank when it preempts the job.

    It signals all processes of a job's steps, GraceTime seconds before it ends them.
    """
    return BY_STEP in os.environ


def signal_told() -> int:
    """The number that orch gives its ranks, the same to all; 0 without orch, and for none."""
    words = os.environ.get(stack_signal.PREEMPT, "")
    return int(words) if words.isdigit() else 0


def group_device(torch: Any) -> Any:
    """Return a device whose tensors the default group takes: the CPU wherever it does."""
    cpu = torch.device("cpu")
    devices = getattr(torch.distributed.group.WORLD, "_device_types", [cpu])  # torch 2.0 has none
    return cpu if cpu in devices else devices[0]


def grouped(torch: Any) -> bool:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    return bool(distributed.get_world_size() > 1)


def calls_in(wanted: float, calls: int, seconds: float) -> int:
    """How many calls fit into the `wanted` seconds; at most twice those that took `seconds`, for
    the first steps are no measure."""
    return max(1, min(2 * calls, int(wanted * calls / max(seconds, 1e-6))))


AGREEMENT = Agreement()


def requested() -> bool:
    """Whether the run is to make room. Called by all ranks, at the same place of each step."""
    return AGREEMENT.ask()


def end(step: int) -> NoReturn:
    """The checkpoint of this step stands: say so, and end this rank. Raises SystemExit."""
    send(Preempted(step=step))
    raise SystemExit(EX_TEMPFAIL)
