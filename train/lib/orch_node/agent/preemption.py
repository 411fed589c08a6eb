"""Ask the ranks of this node to write a checkpoint and end (orch_node/preemption.py)."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from orch_node import stack_signal
from orch_node.agent.processes import Process, handles_signal, send_signal


def preempt(processes: Iterable[Process]) -> tuple[int, ...]:
    """Ask ranks to end after a checkpoint.

    Returns:
        The ranks that were asked. The signal would kill the others, so they do not get it.
    """
    return tuple(process.rank for process in processes if process.rank is not None and preempt_rank(process))


def preempt_rank(process: Process) -> bool:
    """Send the signal that `orch_node.preemption` handles, or SIGTERM if the script handles that."""
    for number in (stack_signal.signal_of_process(process.pid, stack_signal.PREEMPT), signal.SIGTERM):
        if number and handles_signal(process.pid, number):
            return send_signal(process, number)
    return False
