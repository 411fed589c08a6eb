"""Check messages, lists, complex numbers and callbacks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from start import RANK, SIZE, init, print_line
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook


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


def any_source() -> None:
    if RANK > 0:
        dist.send(torch.full((4,), float(RANK)), 0, tag=5)
        return
    sources = set()
    for _ in range(SIZE - 1):
        tensor = torch.zeros(4)
        source = dist.recv(tensor, tag=5)
        assert (tensor == source).all()
        sources.add(source)
    assert sources == set(range(1, SIZE))


def complex_sums() -> None:
    data = torch.tensor([1 + 2j, 3 - 1j] * SIZE) * (RANK + 1)
    total = torch.tensor([1 + 2j, 3 - 1j] * SIZE) * sum(range(1, SIZE + 1))
    reduced = data.clone()
    dist.reduce(reduced, 0)
    assert torch.equal(reduced, total if RANK == 0 else data)
    out = torch.zeros(2, dtype=data.dtype)
    dist.reduce_scatter(out, list(data.clone().split(2)))
    assert torch.equal(out, total[:2])
    dist.reduce_scatter_single(out, data, dist.ReduceOp.AVG)
    assert torch.equal(out, total[:2] / SIZE)


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
        inputs = [torch.full((size,), 2**RANK, dtype=dtype) for size in sizes]
        dist.reduce_scatter(out, inputs, op)
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


def coalesced() -> None:
    """Gather lists with as many tensors as ranks, and with more: lists[rank][i] is tensor i of the rank."""
    for count in (SIZE, SIZE + 1):
        inputs = [torch.full((i + 1,), 10.0 * RANK + i) for i in range(count)]
        lists = [[torch.empty(i + 1) for i in range(count)] for _ in range(SIZE)]
        dist.all_gather_coalesced(lists, inputs)
        for rank, of_rank in enumerate(lists):
            assert all((element == 10.0 * rank + i).all() for i, element in enumerate(of_rank))


def hooks() -> None:
    """Train with PowerSGD, whose callbacks wait for further collectives.

    The model has one bucket: with several, the callbacks start collectives in different orders on
    the ranks, which fails on every CPU backend.
    """
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(50, 60), torch.nn.Linear(60, 70))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(5):
        model(torch.randn(4, 50)).sum().backward()
    gathered = [torch.empty(60, 50) for _ in range(SIZE)]
    dist.all_gather(gathered, layers[0].weight.grad)
    assert all(torch.equal(element, gathered[0]) for element in gathered)


def class_of_groups() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert isinstance(backend, dist.ProcessGroupCCL)
    store = dist.PrefixStore("separate", dist.distributed_c10d._get_default_store())
    group = dist.ProcessGroupCCL(store, RANK, SIZE)
    data = torch.ones(3)
    group.allreduce([data]).wait()
    assert (data == SIZE).all()


init(40)
for part in (tags, any_source, complex_sums, uneven, uneven_exchange, coalesced, hooks, class_of_groups):
    part()
    dist.barrier()
    print_line(part.__name__)
dist.destroy_process_group()
print_line("fine")
