"""Check collectives of tensors that are not contiguous, share memory or belong to inference mode."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from start import RANK, SIZE, all_gather_single, error_of, init, print_line, reduce_scatter_single

ROWS, COLUMNS = 4, 6
NEXT = (RANK + 1) % SIZE
PREVIOUS = (RANK - 1) % SIZE
Layout = Callable[[torch.Tensor], torch.Tensor]


def values(rank: int) -> torch.Tensor:
    return torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS) + 100 * rank


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values in a tensor that is not contiguous."""
    return torch.empty(tensor.shape[::-1], dtype=tensor.dtype).t().copy_(tensor)


VALUES = [values(rank) for rank in range(SIZE)]
OWN, TOTAL, ALL = VALUES[RANK], sum(VALUES), torch.cat(VALUES)
EMPTY, EMPTY_ALL = torch.full_like(OWN, -1), torch.full_like(ALL, -1)
COPIES = torch.cat([OWN] * SIZE)  # a part for each rank


def exchange(out: list[torch.Tensor]) -> dist.Work:
    work = dist.irecv(out[0], PREVIOUS)
    dist.isend(OWN, NEXT).wait()
    return work


# The tensors before the call, a function that starts the collective with them, and the tensors after it.
COLLECTIVES: dict[str, tuple[list[torch.Tensor], Callable[[list[torch.Tensor]], dist.Work], list[torch.Tensor]]] = {
    "all_reduce": ([OWN], lambda out: dist.all_reduce(*out, async_op=True), [TOTAL]),
    "coalesced": ([OWN, OWN], lambda out: dist.all_reduce_coalesced(out, async_op=True), [TOTAL, TOTAL]),
    "reduce": ([OWN], lambda out: dist.reduce(*out, 0, async_op=True), [TOTAL if RANK == 0 else OWN]),
    "broadcast": ([OWN], lambda out: dist.broadcast(*out, 0, async_op=True), [VALUES[0]]),
    "reduce_scatter": ([EMPTY], lambda out: dist.reduce_scatter(*out, [OWN] * SIZE, async_op=True), [TOTAL]),
    "reduce_scatter_tensor": ([EMPTY], lambda out: reduce_scatter_single(*out, COPIES, async_op=True), [TOTAL]),
    "all_gather": ([EMPTY] * SIZE, lambda out: dist.all_gather(out, OWN, async_op=True), VALUES),
    "all_gather_tensor": ([EMPTY_ALL], lambda out: all_gather_single(*out, OWN, async_op=True), [ALL]),
    "gather": (
        [EMPTY] * SIZE if RANK == 0 else [],
        lambda out: dist.gather(OWN, out or None, 0, async_op=True),
        VALUES if RANK == 0 else [],
    ),
    "scatter": ([EMPTY], lambda out: dist.scatter(*out, VALUES if RANK == 0 else None, 0, async_op=True), [OWN]),
    "all_to_all_single": ([EMPTY_ALL], lambda out: dist.all_to_all_single(*out, COPIES, async_op=True), [ALL]),
    "all_to_all": ([EMPTY] * SIZE, lambda out: dist.all_to_all(out, [OWN] * SIZE, async_op=True), VALUES),
    "exchange": ([EMPTY], exchange, [VALUES[PREVIOUS]]),
}


def call(name: str, layout: Layout) -> None:
    """Check a collective that writes to tensors of this layout."""
    before, begin, expected = COLLECTIVES[name]
    results = [layout(tensor) for tensor in before]
    work = begin(results)
    time.sleep(0.04 if RANK % 2 else 0.002)  # on some ranks the communication thread completes it
    work.wait()
    for result, right in zip(results, expected, strict=True):
        assert torch.equal(result, right), (name, result, right)


def inference_tensor(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return transposed(tensor)


def callbacks() -> None:
    """Change an inference tensor in a callback of its future."""
    for seconds in (0, 0.05):
        with torch.inference_mode():
            work = dist.all_reduce(data := transposed(values(RANK)), async_op=True)
            future = work.get_future().then(lambda future: future.value()[0].mul_(2))
            time.sleep(seconds)
            future.wait()
            assert torch.equal(data, 2 * TOTAL)


def parameters() -> None:
    parameter = torch.nn.Parameter(values(RANK).t())
    with torch.no_grad():
        work = dist.all_reduce(parameter, async_op=True)
    work.wait()
    assert torch.equal(parameter, TOTAL.t())
    assert parameter.is_leaf
    (parameter * 2).sum().backward()


def shared_elements() -> None:
    """Refuse outputs whose elements share memory before any communication, and read such inputs."""
    layouts = {
        "expanded": lambda tensor: torch.zeros(1, COLUMNS).expand(tensor.shape),
        "sliding": lambda tensor: torch.zeros(10_000).as_strided(tensor.shape, (1, 1)),
    }
    for kind, layout in layouts.items():
        for name in COLLECTIVES:
            if name == "exchange" or (name == "gather" and RANK != 0):
                continue
            message = error_of(lambda: call(name, layout))  # noqa: B023
            assert "several of its elements share memory" in message, (kind, name, message)
            if name == "gather":  # the root alone writes; let the others' part of the gather pass
                dist.gather(OWN, [EMPTY.clone() for _ in range(SIZE)], 0)
        if RANK != 0:
            dist.gather(OWN, None, 0)
        assert "several of its elements" in error_of(lambda layout=layout: dist.recv(layout(EMPTY), PREVIOUS))
    expanded = torch.full((1,), float(RANK + 1)).expand(5)
    out = torch.empty(5 * SIZE)
    all_gather_single(out, expanded)
    assert out.tolist() == [rank + 1.0 for rank in range(SIZE) for _ in range(5)]
    part = torch.empty(5)
    reduce_scatter_single(part, torch.full((1,), 2.0).expand(5 * SIZE))
    assert part.tolist() == [2.0 * SIZE] * 5


def inputs_in_outputs() -> None:
    """Check results whose input shares memory with the output."""
    for length in (6, 300_000):
        tensors = [torch.arange(SIZE * length, dtype=torch.float32) % 1000 + rank for rank in range(SIZE)]
        rank_slice = slice(RANK * length, (RANK + 1) * length)
        exchanged = torch.cat([tensor[rank_slice] for tensor in tensors])
        data = tensors[RANK].clone()
        dist.all_to_all_single(data, data)
        assert torch.equal(data, exchanged), length
        for part in (0, 1):  # this rank's part of the tensor, and that of the next rank
            begins = [(rank + part) % SIZE * length for rank in range(SIZE)]
            inside = slice(begins[RANK], begins[RANK] + length)
            data = tensors[RANK].clone()
            reduce_scatter_single(data[inside], data)
            assert torch.equal(data[inside], sum(tensors)[rank_slice]), (length, part)
            data = tensors[RANK].clone()
            all_gather_single(data, data[inside])
            expected = [tensor[begin : begin + length] for tensor, begin in zip(tensors, begins, strict=True)]
            assert torch.equal(data, torch.cat(expected)), (length, part)


def splits() -> None:
    """Refuse invalid splits and scalars before any communication."""
    for rows in ([ROWS + 1, -1] + [0] * (SIZE - 2), [ROWS], [ROWS] * SIZE):
        assert error_of(lambda: dist.all_to_all_single(EMPTY, OWN, rows, rows)).startswith("ValueError")  # noqa: B023
    assert error_of(lambda: dist.all_to_all_single(torch.tensor(0.0), torch.tensor(1.0))).startswith("ValueError")


def averages() -> None:
    """Check averages of integers whose sum does not fit into their type."""
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        limits = torch.iinfo(dtype)
        numbers = [100, limits.max, limits.max - 1, limits.min, -7 if dtype.is_signed else 7]
        parts = [torch.tensor(numbers, dtype=dtype) for _ in range(SIZE)]
        parts[0][4] += 1
        sums = [sum(int(part[i]) for part in parts) for i in range(len(numbers))]
        expected = torch.tensor([abs(total) // SIZE * (1 if total >= 0 else -1) for total in sums], dtype=dtype)
        data = parts[RANK].clone()
        dist.all_reduce(data, dist.ReduceOp.AVG)
        assert torch.equal(data, expected), (dtype, data, expected)
        dist.reduce(data := parts[RANK].clone(), 0, dist.ReduceOp.AVG)
        assert torch.equal(data, expected if RANK == 0 else parts[RANK]), (dtype, data, expected)
        dist.all_reduce_coalesced(several := [parts[RANK].clone(), parts[RANK].clone()], dist.ReduceOp.AVG)
        assert all(torch.equal(data, expected) for data in several), (dtype, several)
        out = torch.empty_like(expected)
        reduce_scatter_single(out, parts[RANK].repeat(SIZE), dist.ReduceOp.AVG)
        assert torch.equal(out, expected), (dtype, out, expected)
        dist.reduce_scatter(out.zero_(), [parts[RANK]] * SIZE, dist.ReduceOp.AVG)
        assert torch.equal(out, expected), (dtype, out, expected)


init()
for name in COLLECTIVES:
    call(name, transposed)
    call(name, inference_tensor)
for check in (callbacks, parameters, shared_elements, inputs_in_outputs, splits, averages):
    check()
dist.all_reduce(data := torch.ones(3))  # the group still works
assert data.tolist() == [SIZE] * 3
print_line("fine")
dist.destroy_process_group()
