"""Abort operations that the other rank never joins, at random times, while the monitor runs."""

from __future__ import annotations

import contextlib
import random
import time

import torch
import torch.distributed as dist
from start import RANK, init, print_line

init(60)
chance = random.Random(RANK)
for _ in range(12):
    group = dist.new_group([0, 1])
    if RANK == 0:
        work = dist.all_reduce(torch.ones(10), group=group, async_op=True)
        time.sleep(1 + 0.15 * chance.random())  # after a second the monitor announces the operation
        group._get_backend(torch.device("cpu")).abort()
        with contextlib.suppress(dist.DistBackendError):
            work.wait()
dist.barrier()
print_line("fine")
