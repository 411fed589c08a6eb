"""Check collectives of tensors that are not contiguous, share memory or belong to inference mode: layouts.py CASE."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from start import RANK, SIZE, all_gather_single, error_of, init, print_line, reduce_scatter_single

ROWS, COLUMNS = 4, 6
NEXT = (RANK + 1) % SIZE
PREVIOUS = (RANK - 1) % SIZE
Layout = Callable[[torch.Tensor], torch.Tensor]


def values(rank: int, rows: int = ROWS) -> torch.Tensor:
    return torch.arange(rows * COLUMNS, dtype=torch.float32).view(rows, COLUMNS) + 100 * rank


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values in a tensor that is not contiguous."""
    out = torch.empty(tensor.shape[::-1], dtype=tensor.dtype).t()
    return out.copy_(tensor)


def sliced(tensor: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(tensor.shape[0], 2 * tensor.shape[1], dtype=tensor.dtype)[:, ::2]
    return out.copy_(tensor)


def work_of(work: dist.Work | None) -> list[dist.Work]:
    assert work is not None
    return [work]


def outputs_of(rows: int = ROWS) -> torch.Tensor:
    return torch.full((rows, COLUMNS), -1.0)


TOTAL = sum(values(rank) for rank in range(SIZE))
LONG = ROWS * SIZE  # rows of a tensor with a part for each rank


class Collectives:
    """Every collective, as a method that writes to tensors of a layout and checks the result."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @classmethod
    def names(cls) -> list[str]:
        return [name for name in vars(cls) if not name.startswith("_") and name not in ("finish", "names")]

    @staticmethod
    def finish(works: list[dist.Work], results: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
        time.sleep(0.04 if RANK % 2 else 0.002)  # on some ranks the communication thread completes it
        for work in works:
            work.wait()
        for result, right in zip(results, expected, strict=True):
            assert torch.equal(result, right), (result, right)

    def all_reduce(self) -> None:
        data = self.layout(values(RANK))
        self.finish(work_of(dist.all_reduce(data, async_op=True)), [data], [TOTAL])

    def coalesced(self) -> None:
        data = [self.layout(values(RANK)), self.layout(values(RANK))]
        self.finish(work_of(dist.all_reduce_coalesced(data, async_op=True)), data, [TOTAL, TOTAL])

    def reduce(self) -> None:
        data = self.layout(values(RANK))
        self.finish(work_of(dist.reduce(data, 0, async_op=True)), [data], [TOTAL if RANK == 0 else values(RANK)])

    def broadcast(self) -> None:
        data = self.layout(values(RANK))
        self.finish(work_of(dist.broadcast(data, 0, async_op=True)), [data], [values(0)])

    def reduce_scatter(self) -> None:
        out = self.layout(outputs_of())
        self.finish(work_of(dist.reduce_scatter(out, [values(RANK)] * SIZE, async_op=True)), [out], [TOTAL])

    def reduce_scatter_tensor(self) -> None:
        out = self.layout(outputs_of())
        data = torch.cat([values(RANK)] * SIZE)
        self.finish(work_of(reduce_scatter_single(out, data, async_op=True)), [out], [TOTAL])

    def all_gather(self) -> None:
        out = [self.layout(outputs_of()) for _ in range(SIZE)]
        work = work_of(dist.all_gather(out, values(RANK), async_op=True))
        self.finish(work, out, [values(rank) for rank in range(SIZE)])

    def all_gather_tensor(self) -> None:
        out = self.layout(outputs_of(LONG))
        work = work_of(all_gather_single(out, values(RANK), async_op=True))
        self.finish(work, [out], [torch.cat([values(rank) for rank in range(SIZE)])])

    def gather(self) -> None:
        out = [self.layout(outputs_of()) for _ in range(SIZE)] if RANK == 0 else None
        work = work_of(dist.gather(values(RANK), out, 0, async_op=True))
        self.finish(work, out or [], [values(rank) for rank in range(SIZE)] if out else [])

    def scatter(self) -> None:
        out = self.layout(outputs_of())
        parts = [values(rank) for rank in range(SIZE)] if RANK == 0 else None
        self.finish(work_of(dist.scatter(out, parts, 0, async_op=True)), [out], [values(RANK)])

    def all_to_all_single(self) -> None:
        out = self.layout(outputs_of(LONG))
        work = work_of(dist.all_to_all_single(out, torch.cat([values(RANK)] * SIZE), async_op=True))
        self.finish(work, [out], [torch.cat([values(rank) for rank in range(SIZE)])])

    def all_to_all(self) -> None:
        out = [self.layout(outputs_of()) for _ in range(SIZE)]
        work = work_of(dist.all_to_all(out, [values(RANK)] * SIZE, async_op=True))
        self.finish(work, out, [values(rank) for rank in range(SIZE)])

    def receive(self) -> None:
        out = self.layout(outputs_of())
        works = work_of(dist.irecv(out, PREVIOUS)) + work_of(dist.isend(values(RANK), NEXT))
        self.finish(works, [out], [values(PREVIOUS)])


def call_all(layout: Layout) -> None:
    for name in Collectives.names():
        getattr(Collectives(layout), name)()


def strided() -> None:
    for layout in (transposed, sliced):
        call_all(layout)


def inference() -> None:
    with torch.inference_mode():
        strided()


def inference_tensors_outside_the_mode() -> None:
    def inference_tensor(tensor: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return transposed(tensor)

    call_all(inference_tensor)


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
        for name in Collectives.names():
            if name == "receive" or (name == "gather" and RANK != 0):
                continue
            message = error_of(getattr(Collectives(layout), name))
            assert "several of its elements share memory" in message, (kind, name, message)
            if name == "gather":  # the root alone writes; let the others' part of the gather pass
                dist.gather(values(RANK), [outputs_of() for _ in range(SIZE)], 0)
        if RANK != 0:
            dist.gather(values(RANK), None, 0)
        assert "several of its elements" in error_of(lambda layout=layout: dist.recv(layout(outputs_of()), PREVIOUS))
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


CASES = {
    case.__name__: case
    for case in (
        strided,
        inference,
        inference_tensors_outside_the_mode,
        callbacks,
        parameters,
        shared_elements,
        inputs_in_outputs,
        averages,
    )
}


def main() -> None:
    init()
    for name in sys.argv[1:]:
        CASES[name]()
    dist.all_reduce(data := torch.ones(3))  # the group still works
    assert data.tolist() == [SIZE] * 3
    print_line("fine")
    dist.destroy_process_group()


main()
