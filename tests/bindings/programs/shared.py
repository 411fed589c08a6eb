"""Check collectives through shared memory: shared.py CASE, one of CASES."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from start import RANK, SIZE, all_gather_single, init, print_line, reduce_scatter_single

LENGTHS = (1, 1000, 70_001, 1_000_003, 3_000_001)  # short, few rounds, many rounds, bypassing the caches
ROUTE_TURNS = 12  # of four or more rounds each; both routes have been tried after 24 rounds


def mapped() -> bool:
    return "orch-ccl" in Path("/proc/self/maps").read_text()


def numbers(rank: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(rank)).to(dtype)


def added(parts: list[torch.Tensor]) -> torch.Tensor:
    """Return the sum in the order of the ranks, in float32 and rounded once."""
    expected = parts[0].float()
    for part in parts[1:]:
        expected = expected + part.float()
    return expected.to(parts[0].dtype)


Allocate = Callable[[int, torch.dtype], torch.Tensor]


def ordinary(length: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(length, dtype=dtype)


def check_all(allocate: Allocate, parts: list[torch.Tensor]) -> None:
    """Check the bits of all collectives, with tensors from this allocator and these inputs of the ranks."""
    dtype, length, expected = parts[0].dtype, parts[0].numel() // SIZE, added(parts)
    own_part = slice(RANK * length, (RANK + 1) * length)
    tensor, part, result = allocate(length * SIZE, dtype), allocate(length, dtype), ordinary(length, dtype)
    tensor.copy_(parts[RANK])
    dist.all_reduce(tensor)
    assert torch.equal(tensor, expected), (dtype, length)
    tensor.copy_(parts[RANK])
    reduce_scatter_single(result, tensor)
    assert torch.equal(result, expected[own_part]), (dtype, length)
    assert torch.equal(tensor, parts[RANK]), (dtype, length)
    part.copy_(result)
    all_gather_single(tensor.zero_(), part)
    assert torch.equal(tensor, expected), (dtype, length)
    assert torch.equal(part, result), (dtype, length)
    tensor.zero_()[own_part] = part
    all_gather_single(tensor, tensor[own_part])  # in place, as FSDP does
    assert torch.equal(tensor, expected), (dtype, length)
    tensor.copy_(parts[RANK])
    dist.broadcast(tensor, SIZE - 1)
    assert torch.equal(tensor, parts[SIZE - 1]), (dtype, length)


def check_lengths_and_routes(*allocators: Allocate) -> None:
    """Check all lengths and, with the first allocator and other numbers each time, both routes."""
    for dtype in (torch.float32, torch.bfloat16):
        for length in LENGTHS:
            parts = [numbers(rank, length * SIZE, dtype) for rank in range(SIZE)]
            for allocate in allocators:
                check_all(allocate, parts)
    for turn in range(ROUTE_TURNS):
        check_all(allocators[0], [numbers(rank + SIZE * turn, 300_001 * SIZE, torch.float32) for rank in range(SIZE)])


def same_bits() -> None:
    assert mapped()
    check_lengths_and_routes(ordinary, lambda length, dtype: ordinary(length + 17, dtype)[17:])  # within cache lines


def other_call() -> None:
    dist.all_reduce(torch.ones(10 + RANK))


def sum_or_average() -> None:
    dist.all_reduce(torch.ones(10), dist.ReduceOp.AVG if RANK else dist.ReduceOp.SUM)


def two_roots() -> None:
    """Broadcast as root on each rank; calls that agree afterwards must not hide it."""
    dist.broadcast(torch.ones(70_001), RANK)
    for _ in range(20):
        dist.all_reduce(torch.ones(10))


def falls_back() -> None:
    """Check that a later group falls back as well, without another warning."""
    assert not mapped()
    tensor = torch.ones(70_001)
    dist.all_reduce(tensor)
    assert (tensor == SIZE).all()
    dist.all_reduce(torch.ones(3), group=dist.new_group())


CASES = {
    "same-bits": same_bits,
    "other-call": other_call,
    "sum-or-average": sum_or_average,
    "two-roots": two_roots,
    "no-memory": falls_back,
}


def main() -> None:
    case = sys.argv[1]
    if case == "no-memory":  # longer files cannot be created
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    init(20)
    CASES[case]()
    print_line("fine")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
