"""Check messages with tags, lists of tensors of different sizes, and the class of groups."""

from __future__ import annotations

import torch
import torch.distributed as dist
from start import RANK, SIZE, init, print_line


def tags() -> None:
    """Receive messages of different sizes in another order than that of sending."""
    if RANK == 0:
        for tag, size in ((7, 5), (8, 300_000), (9, 0), (7, 6), (0, 3)):
            dist.send(torch.full((size,), float(tag)), 1, tag=tag)
    if RANK == 1:
        expected = {(tag, size): torch.zeros(size) for tag, size in ((8, 300_000), (7, 5), (7, 6), (9, 0))}
        works = [dist.irecv(into, 0, tag=tag) for (tag, _), into in expected.items()]
        for work in reversed(works):
            work.wait()
        for (tag, _), tensor in expected.items():
            assert (tensor == tag).all()
        last = torch.ones(3)
        assert dist.recv(last) == 0, "not from rank 0"
        assert (last == 0).all()


def uneven() -> None:
    sizes = [rank * 700_000 + 2 for rank in range(SIZE)]
    gathered = [torch.empty(size) for size in sizes]
    dist.all_gather(gathered, torch.full((sizes[RANK],), float(RANK)))
    assert all((tensor == rank).all() for rank, tensor in enumerate(gathered))
    for dtype, op, expected in (
        (torch.float32, dist.ReduceOp.SUM, 2**SIZE - 1),
        (torch.int32, dist.ReduceOp.BOR, 2**SIZE - 1),
        (torch.float32, dist.ReduceOp.MAX, 2 ** (SIZE - 1)),
    ):
        out = torch.empty(sizes[RANK], dtype=dtype)
        dist.reduce_scatter(out, [torch.full((size,), 2**RANK, dtype=dtype) for size in sizes], op)
        assert (out == expected).all()


def uneven_exchange() -> None:
    """Send much from one rank and little from the others, for which oneCCL's default algorithms differ."""
    for large in (40_000, 3_000_000):
        sent_bytes = [large if RANK == SIZE - 1 else 5] * SIZE
        origin = [large if rank == SIZE - 1 else 5 for rank in range(SIZE)]
        out = torch.empty(sum(origin), dtype=torch.uint8)
        dist.all_to_all_single(out, torch.full((sum(sent_bytes),), RANK, dtype=torch.uint8), origin, sent_bytes)
        for rank, part in enumerate(out.split(origin)):
            assert (part == rank).all()


def class_of_groups() -> None:
    assert isinstance(dist.group.WORLD._get_backend(torch.device("cpu")), dist.ProcessGroupCCL)
    store = dist.PrefixStore("separate", dist.distributed_c10d._get_default_store())
    group = dist.ProcessGroupCCL(store, RANK, SIZE)
    data = torch.ones(3)
    group.allreduce([data]).wait()
    assert (data == SIZE).all()


init(40)
for part in (tags, uneven, uneven_exchange, class_of_groups):
    part()
    dist.barrier()
    print_line(part.__name__)
dist.destroy_process_group()
print_line("fine")
