"""Tells the supervisor that a rank gets on, also where its script reports nothing.

What counts are collective operations, optimizer steps and what the rank writes to its log; equal
numbers are not told twice, so a rank that hangs is silent, and its last numbers say where it is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from orch_node.events import send
from orch_node.protocol.events import Heartbeat

SECONDS = 2.0
LOCK = threading.Lock()  # held while groups are looked at, and while they are destroyed


def begin(torch: ModuleType, steps: Callable[[], int], look: Callable[[], None]) -> None:
    """Start the thread that tells; it never keeps the process alive. `steps`: made so far.
    `look`: what is to be looked at as often."""
    guard_destruction(torch)
    arguments = (torch, steps, look)
    threading.Thread(target=beat, args=arguments, name="orch-heartbeat", daemon=True).start()


def guard_destruction(torch: ModuleType) -> None:
    """A group must end in the thread that ends it: not here, because we held it last."""
    if not torch.distributed.is_available():
        return
    original = torch.distributed.destroy_process_group

    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        with LOCK:
            original(*args, **kwargs)

    torch.distributed.destroy_process_group = destroy_process_group
    torch.distributed.distributed_c10d.destroy_process_group = destroy_process_group


def beat(torch: ModuleType, steps: Callable[[], int], look: Callable[[], None]) -> None:
    told = Heartbeat()
    while True:
        look()
        now = Heartbeat(collectives=collectives(torch), steps=steps(), log=os.fstat(1).st_size)
        if now != told:
            send(now)
            told = now
        time.sleep(SECONDS)


def collectives(torch: ModuleType) -> int:
    """How many collective operations this rank has begun, in all its groups."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0
    total = 0
    with LOCK:
        for group in list(distributed.distributed_c10d._world.pg_map):
            try:
                total += group._get_backend(torch.device("cpu"))._get_sequence_number_for_group()
            except Exception:  # not all backends count
                continue
            finally:
                del group
    return int(total)
