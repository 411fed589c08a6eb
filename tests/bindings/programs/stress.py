"""1,000 rounds, or as many as asked for, of mixed asynchronous collectives, all checked."""

from __future__ import annotations

import random
import sys

import torch
import torch.distributed as dist
from start import RANK, SIZE, all_gather_single, init, reduce_scatter_single, say

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
init(60)
groups = [dist.group.WORLD, dist.new_group(list(range(SIZE)))]
shared = random.Random(7)  # the same choices on all ranks
private = random.Random(RANK)  # but another order between the groups
total = sum(range(SIZE))


def begin(kind: str, group: dist.ProcessGroup, size: int):
    """-> (work, check): check() is true when the result is right."""
    mine = torch.full((size,), float(RANK))
    everyone = torch.arange(float(SIZE)).repeat_interleave(size)
    if kind == "all_reduce":
        return dist.all_reduce(mine, group=group, async_op=True), lambda: bool((mine == total).all())
    if kind == "broadcast":
        return dist.broadcast(mine, SIZE - 1, group=group, async_op=True), lambda: bool((mine == SIZE - 1).all())
    if kind == "all_gather":
        out = torch.empty(size * SIZE)
        work = all_gather_single(out, mine, group=group, async_op=True)
        return work, lambda: torch.equal(out, everyone)
    if kind == "reduce_scatter":
        out = torch.empty(size)
        work = reduce_scatter_single(out, mine.repeat(SIZE), group=group, async_op=True)
        return work, lambda: bool((out == total).all())
    out = torch.empty(size * SIZE)
    work = dist.all_to_all_single(out, mine.repeat(SIZE), group=group, async_op=True)
    return work, lambda: torch.equal(out, everyone)


KINDS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
flying = []
for _ in range(ROUNDS):
    plan = [(group, shared.choice(KINDS), shared.choice((1, 100, 5000, 40_000))) for group in groups]
    if private.random() < 0.5:
        plan.reverse()
    flying += [begin(kind, group, size) for group, kind, size in plan]
    private.shuffle(flying)
    while len(flying) > private.randrange(1, 12):
        work, right = flying.pop()
        work.wait()
        assert right()
for work, right in flying:
    work.wait()
    assert right()
dist.destroy_process_group()
say("fine")
