"""Run and check rounds of mixed asynchronous collectives: stress.py [ROUNDS [ABORTS]], by default 1,000 and 0.

Then rank 0 aborts operations that the other ranks never join, at random times, while the monitor runs.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time

import torch
import torch.distributed as dist
from start import RANK, SIZE, all_gather_single, init, print_line, reduce_scatter_single

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
ABORTS = int(sys.argv[2]) if len(sys.argv) > 2 else 0
init(60)
groups = [dist.group.WORLD, dist.new_group(list(range(SIZE)))]
shared = random.Random(7)  # the same choices on all ranks
private = random.Random(RANK)  # but different orders of the groups
total = sum(range(SIZE))


def begin(kind: str, group: dist.ProcessGroup, size: int):
    """Start a collective and return its Work and a function that checks the result."""
    data = torch.full((size,), float(RANK))
    everyone = torch.arange(float(SIZE)).repeat_interleave(size)
    if kind == "all_reduce":
        return dist.all_reduce(data, group=group, async_op=True), lambda: bool((data == total).all())
    if kind == "broadcast":
        return dist.broadcast(data, SIZE - 1, group=group, async_op=True), lambda: bool((data == SIZE - 1).all())
    if kind == "all_gather":
        out = torch.empty(size * SIZE)
        work = all_gather_single(out, data, group=group, async_op=True)
        return work, lambda: torch.equal(out, everyone)
    if kind == "reduce_scatter":
        out = torch.empty(size)
        work = reduce_scatter_single(out, data.repeat(SIZE), group=group, async_op=True)
        return work, lambda: bool((out == total).all())
    out = torch.empty(size * SIZE)
    work = dist.all_to_all_single(out, data.repeat(SIZE), group=group, async_op=True)
    return work, lambda: torch.equal(out, everyone)


KINDS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
pending = []
for _ in range(ROUNDS):
    plan = [(group, shared.choice(KINDS), shared.choice((1, 100, 5000, 40_000))) for group in groups]
    if private.random() < 0.5:
        plan.reverse()
    pending += [begin(kind, group, size) for group, kind, size in plan]
    private.shuffle(pending)
    while len(pending) > private.randrange(1, 12):
        work, is_correct = pending.pop()
        work.wait()
        assert is_correct()
for work, is_correct in pending:
    work.wait()
    assert is_correct()
for _ in range(ABORTS):
    group = dist.new_group()
    if RANK == 0:
        work = dist.all_reduce(torch.ones(10), group=group, async_op=True)
        time.sleep(1 + 0.15 * private.random())  # after a second the monitor announces the operation
        group._get_backend(torch.device("cpu")).abort()
        with contextlib.suppress(dist.DistBackendError):
            work.wait()
dist.barrier()
dist.destroy_process_group()
print_line("fine")
