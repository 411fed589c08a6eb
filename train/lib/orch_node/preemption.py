"""Let a script end early at a checkpoint when its run is preempted, and resume later.

    from orch_node import preemption

    for step, batch in enumerate(batches, start=1):
        ...                              # the step
        if preemption.requested():       # the same result on all ranks
            save(step)                   # the script's own checkpoint
            preemption.end(step)

The signal may reach only one rank. About once per second, the ranks therefore exchange whether they
have received it, with one small all-reduce. Without orch, nothing is ever requested or sent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

from orch_node.events import send
from orch_node.protocol.environment import PREEMPT_SIGNAL
from orch_node.protocol.events import Preempted
from orch_node.protocol.outcome import EX_TEMPFAIL
from orch_node.reach import BY_STEP

SECONDS = 1.0  # approximate time between two exchanges with the other ranks


class Agreement:
    """The agreement of all ranks on whether the run is preempted.

    Attributes:
        signalled: whether this rank has received the signal.
        agreed: whether any rank has received it, as of the last exchange.
        collectives: the number of all-reduces so far.
        handles_signal: whether the signal has a handler.
        calls: the calls since the last exchange.
        every: the calls between two exchanges; the same on all ranks.
        exchanged_at: the time of the last exchange.
    """

    def __init__(self) -> None:
        self.signalled = False
        self.agreed = False
        self.collectives = 0
        self.handles_signal = False
        self.calls = 0
        self.every = 1
        self.exchanged_at = time.monotonic()

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        self.signalled = True

    def is_preempted(self) -> bool:
        """Return whether the run is preempted; exchange with the other ranks if it is time."""
        value = os.environ.get(PREEMPT_SIGNAL, "")
        number = int(value) if value.isdigit() else 0  # 0: there is none, as without orch
        if number and not self.agreed:
            self.listen(number)
            self.calls += 1
            if self.calls >= self.every:
                self.exchange()
        return self.agreed

    def listen(self, number: int) -> None:
        """Handle the signal from the first call on; a script that never calls ends as usual."""
        if self.handles_signal or threading.current_thread() is not threading.main_thread():
            return
        self.handles_signal = True
        # Slurm sends SIGTERM to all processes of a job that it preempts, GraceTime seconds before it ends them.
        handles_term = BY_STEP in os.environ and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        for handled in (number, signal.SIGTERM) if handles_term else (number,):
            signal.signal(handled, self.handle_signal)
            signal.siginterrupt(handled, False)

    def exchange(self) -> None:
        """Exchange with the other ranks; the time of the slowest one determines the next exchange."""
        now = time.monotonic()
        signalled, seconds = self.maximum(float(self.signalled), now - self.exchanged_at)
        self.agreed = signalled > 0
        self.every = calls_in(SECONDS, self.calls, seconds)
        self.calls, self.exchanged_at = 0, now

    def maximum(self, signalled: float, seconds: float) -> tuple[float, float]:
        """Return the maxima of both values over all ranks."""
        torch = sys.modules.get("torch")
        if torch is None or not has_several_ranks(torch):
            return signalled, seconds
        largest = torch.tensor([signalled, seconds], dtype=torch.float32, device=group_device(torch))
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
        self.collectives += 1
        return float(largest[0]), float(largest[1])


def group_device(torch: Any) -> Any:
    """Return a device whose tensors the default group supports, preferably the CPU."""
    cpu = torch.device("cpu")
    devices = getattr(torch.distributed.group.WORLD, "_device_types", [cpu])  # torch 2.0 has none
    return cpu if cpu in devices else devices[0]


def has_several_ranks(torch: Any) -> bool:
    """Return whether there is a process group with several ranks."""
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


def calls_in(available: float, calls: int, seconds: float) -> int:
    """Return how many calls fit into the `available` seconds.

    It is at most twice the number of calls that took `seconds`, because the first steps are not
    representative.
    """
    return max(1, min(2 * calls, int(available * calls / max(seconds, 1e-6))))


AGREEMENT = Agreement()


def requested() -> bool:
    """Return whether the run is preempted and must end after a checkpoint.

    All ranks must call this at the same point of each step.
    """
    return AGREEMENT.is_preempted()


def end(step: int) -> NoReturn:
    """Report that the checkpoint of this step is complete, and end this rank.

    Raises:
        SystemExit: always.
    """
    send(Preempted(step=step))
    raise SystemExit(EX_TEMPFAIL)
