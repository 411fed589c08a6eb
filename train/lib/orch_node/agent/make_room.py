"""The ranks of this node are told to make room: to write a checkpoint and end (preemption.py)."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from orch_node import stack_signal
from orch_node.agent.processes import Process, handles, send


def tell(ranks: Iterable[Process]) -> tuple[int, ...]:
    """-> the ranks that have been told; the others would die of it, and are left alone."""
    return tuple(one.rank for one in ranks if one.rank is not None and tell_rank(one))


def tell_rank(process: Process) -> bool:
    """By the signal that `orch_node.preemption` handles, or by SIGTERM, if the script does that."""
    for number in (stack_signal.of_process(process.pid, stack_signal.PREEMPT), signal.SIGTERM):
        if number and handles(process.pid, number):
            return send(process, number)
    return False
