"""The counts of a rank's communication."""

from __future__ import annotations

import json
import os
import signal
from types import SimpleNamespace

from orch_node import events
from orch_node.protocol.events import Heartbeat, event_fields
from orch_node.rank import communication

TORCH = SimpleNamespace(distributed=SimpleNamespace(is_available=lambda: False))


def test_counting_in_a_child_forked_while_the_lock_is_held_does_not_hang() -> None:
    with communication.LOCK:  # as the heartbeat does
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(5)
            communication.collectives(TORCH)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


# A backend that has enqueued collectives, as ProcessGroupNCCL counts them.
NCCL = SimpleNamespace(uid=0, _get_sequence_number_for_group=lambda: 105)


def test_collectives_behind_the_one_that_waits_on_the_gpu_are_pending() -> None:
    """Check the positions with recorded output of torch's flight recorder, whose numbers are texts."""
    for status, pending in (
        ({"0": {"last_enqueued_collective": "105", "last_completed_collective": "100"}}, 4),  # waits
        ({"0": {"last_enqueued_collective": "105", "last_completed_collective": "105"}}, 0),  # done
        ({"0": {"last_enqueued_collective": "105", "last_completed_collective": "-1"}}, 104),  # first
        ({"1": {"last_completed_collective": "1"}}, 0),  # another group
        (None, 0),  # no recorder
    ):
        trace = json.dumps({"version": "2.10", **({} if status is None else {"pg_status": status})}).encode()
        group = SimpleNamespace(_device_types=["cuda"], _get_backend=lambda _: NCCL)
        world = SimpleNamespace(pg_map=[group], default_pg=group)
        c10d = SimpleNamespace(_world=world)
        distributed = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, distributed_c10d=c10d)
        recorder = SimpleNamespace(_dump_nccl_trace_json=lambda *, includeCollectives, trace=trace: trace)
        torch = SimpleNamespace(distributed=distributed, device=str, _C=SimpleNamespace(_distributed_c10d=recorder))
        assert communication.pending(torch)[""] == pending


def test_counts_of_the_largest_number_of_groups_fit_into_an_event() -> None:
    largest = 10**10
    groups = {f"{number:08x}": largest for number in range(communication.MAX_GROUPS)}
    heartbeat = Heartbeat(rank=10**6, collectives=largest, groups=groups, point_to_point=largest, log=largest)
    events.encode(heartbeat.kind, event_fields(heartbeat))  # raises ValueError if the line is too long
