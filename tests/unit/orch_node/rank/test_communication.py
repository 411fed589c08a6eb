"""The counts of a rank's communication."""

from __future__ import annotations

import os
import signal
from types import ModuleType, SimpleNamespace
from typing import cast

from orch_node import events
from orch_node.protocol.events import Heartbeat, event_fields
from orch_node.rank import communication

TORCH = cast(ModuleType, SimpleNamespace(distributed=SimpleNamespace(is_available=lambda: False)))


def test_counting_in_a_child_forked_while_the_lock_is_held_does_not_hang() -> None:
    with communication.LOCK:  # as the heartbeat does
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(5)
            communication.collectives(TORCH)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_counts_of_the_largest_number_of_groups_fit_into_an_event() -> None:
    largest = 10**10
    groups = {f"{number:08x}": largest for number in range(communication.MAX_GROUPS)}
    heartbeat = Heartbeat(rank=10**6, collectives=largest, groups=groups, point_to_point=largest, log=largest)
    events.encode(heartbeat.kind, event_fields(heartbeat))  # raises ValueError if the line is too long
