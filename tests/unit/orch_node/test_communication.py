"""Counts of what a rank has communicated."""

from __future__ import annotations

import os
import signal
from types import ModuleType, SimpleNamespace
from typing import cast

from orch_node.rank import communication

TORCH = cast(ModuleType, SimpleNamespace(distributed=SimpleNamespace(is_available=lambda: False)))


def test_a_child_that_is_forked_while_operations_are_counted_does_not_hang() -> None:
    with communication.LOCK:  # the heartbeat holds it at times
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(5)
            communication.collectives(TORCH)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
