"""What the suites of others found in messages, lists, complex numbers and callbacks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from start import RANK, SIZE, init, say
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook


def tags() -> None:
    """The receiver asks for them in another order than they are sent in, and of different sizes."""
    if RANK == 0:
        for tag, size in ((7, 5), (8, 300_000), (9, 0), (7, 6), (0, 3)):
            dist.send(torch.full((size,), float(tag)), 1, tag=tag)
    if RANK == 1:
        wanted = {(tag, size): torch.zeros(size) for tag, size in ((8, 300_000), (7, 5), (7, 6), (9, 0))}
        works = [dist.irecv(into, 0, tag=tag) for (tag, _), into in wanted.items()]
        for work in reversed(works):
            work.wait()
        for (tag, _), got in wanted.items():
            assert (got == tag).all()
        last = torch.ones(3)
        assert dist.recv(last) == 0, "not from rank 0"
        assert (last == 0).all()


def any_source() -> None:
    if RANK > 0:
        dist.send(torch.full((4,), float(RANK)), 0, tag=5)
        return
    sources = set()
    for _ in range(SIZE - 1):
        got = torch.zeros(4)
        source = dist.recv(got, tag=5)
        assert (got == source).all()
        sources.add(source)
    assert sources == set(range(1, SIZE))


def complex_sums() -> None:
    mine = torch.tensor([1 + 2j, 3 - 1j] * SIZE) * (RANK + 1)
    total = torch.tensor([1 + 2j, 3 - 1j] * SIZE) * sum(range(1, SIZE + 1))
    whole = mine.clone()
    dist.reduce(whole, 0)
    assert torch.equal(whole, total if RANK == 0 else mine)
    out = torch.zeros(2, dtype=mine.dtype)
    dist.reduce_scatter(out, list(mine.clone().split(2)))
    assert torch.equal(out, total[:2])
    dist.reduce_scatter_single(out, mine, dist.ReduceOp.AVG)
    assert torch.equal(out, total[:2] / SIZE)


def uneven() -> None:
    sizes = [rank * 700_000 + 2 for rank in range(SIZE)]
    gathered = [torch.empty(size) for size in sizes]
    dist.all_gather(gathered, torch.full((sizes[RANK],), float(RANK)))
    assert all((got == rank).all() for rank, got in enumerate(gathered))
    for dtype, op, wanted in (
        (torch.float32, dist.ReduceOp.SUM, 2**SIZE - 1),
        (torch.int32, dist.ReduceOp.BOR, 2**SIZE - 1),
        (torch.float32, dist.ReduceOp.MAX, 2 ** (SIZE - 1)),
    ):
        out = torch.empty(sizes[RANK], dtype=dtype)
        inputs = [torch.full((size,), 2**RANK, dtype=dtype) for size in sizes]
        dist.reduce_scatter(out, inputs, op)
        assert (out == wanted).all()


def uneven_exchange() -> None:
    """One rank sends much, the others little: oneCCL's own choice would differ between them."""
    for large in (40_000, 3_000_000):
        to = [large if RANK == SIZE - 1 else 5] * SIZE
        origin = [large if rank == SIZE - 1 else 5 for rank in range(SIZE)]
        out = torch.empty(sum(origin), dtype=torch.uint8)
        dist.all_to_all_single(out, torch.full((sum(to),), RANK, dtype=torch.uint8), origin, to)
        for rank, part in enumerate(out.split(origin)):
            assert (part == rank).all()


def coalesced() -> None:
    """As many tensors as ranks, and more: out[rank][i] is the rank's tensor i."""
    for count in (SIZE, SIZE + 1):
        inputs = [torch.full((i + 1,), 10.0 * RANK + i) for i in range(count)]
        lists = [[torch.empty(i + 1) for i in range(count)] for _ in range(SIZE)]
        dist.all_gather_coalesced(lists, inputs)
        for rank, of_rank in enumerate(lists):
            assert all((one == 10.0 * rank + i).all() for i, one in enumerate(of_rank))


def hooks() -> None:
    """PowerSGD's callbacks wait for collectives of their own. One bucket: of several the callbacks
    begin theirs in an order of their own on each rank, which no backend for CPUs puts right."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(50, 60), torch.nn.Linear(60, 70))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(5):
        model(torch.randn(4, 50)).sum().backward()
    gathered = [torch.empty(60, 50) for _ in range(SIZE)]
    dist.all_gather(gathered, layers[0].weight.grad)
    assert all(torch.equal(one, gathered[0]) for one in gathered)


def class_of_groups() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert isinstance(backend, dist.ProcessGroupCCL)
    store = dist.PrefixStore("own", dist.distributed_c10d._get_default_store())
    own = dist.ProcessGroupCCL(store, RANK, SIZE)
    data = torch.ones(3)
    own.allreduce([data]).wait()
    assert (data == SIZE).all()


init(40)
for part in (tags, any_source, complex_sums, uneven, uneven_exchange, coalesced, hooks, class_of_groups):
    part()
    dist.barrier()
    say(part.__name__)
dist.destroy_process_group()
say("fine")
