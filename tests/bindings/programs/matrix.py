"""Compare every collective, dtype, operation and size with arithmetic by hand."""

from __future__ import annotations

import functools
import itertools
import math
import sys

import torch
import torch.distributed as dist
from start import RANK, SIZE, all_gather_single, init, print_line, reduce_scatter_single

SIZES = (0, 1, 3, 1000, 70_001)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
ARITHMETIC = {"SUM": torch.add, "AVG": torch.add, "MIN": torch.minimum, "MAX": torch.maximum, "PRODUCT": torch.mul}
BITWISE = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
PAIRWISE = ARITHMETIC | BITWISE  # torch adds booleans by OR and multiplies them by AND
checked = 0


def rank_data(rank: int, dtype: torch.dtype, size: int) -> torch.Tensor:
    """Return small whole numbers, for which every order of reduction gives the same result in every dtype."""
    values = (torch.arange(size) * (rank + 1) + rank) % (2 if dtype == torch.bool else 4) + (
        0 if dtype == torch.bool else 1
    )
    return values.to(dtype)


def by_hand(parts: list[torch.Tensor], op: str) -> torch.Tensor:
    wide = torch.float64 if parts[0].dtype.is_floating_point else parts[0].dtype
    out = functools.reduce(PAIRWISE[op], [part.to(wide) for part in parts])
    if op == "AVG":
        out = out / SIZE if wide.is_floating_point else torch.div(out, SIZE, rounding_mode="trunc")
    return out.to(parts[0].dtype)


def same(result: torch.Tensor, expected: torch.Tensor, *description: object) -> None:
    global checked
    checked += 1
    assert torch.equal(result, expected), f"{description}: {result.flatten()[:8]} instead of {expected.flatten()[:8]}"


def reductions(dtype: torch.dtype, op: str, size: int) -> None:
    kind = getattr(dist.ReduceOp, op)
    parts = [rank_data(rank, dtype, size) for rank in range(SIZE)]
    expected = by_hand(parts, op)
    data = parts[RANK].clone()
    dist.all_reduce(data, kind)
    same(data, expected, "all_reduce", dtype, op, size)

    root = SIZE - 1
    data = parts[RANK].clone()
    dist.reduce(data, root, kind)
    same(data, expected if root == RANK else parts[RANK], "reduce", dtype, op, size)

    inputs = [rank_data(rank, dtype, size * SIZE) for rank in range(SIZE)]
    piece = by_hand(inputs, op)[RANK * size : (RANK + 1) * size]
    out = torch.empty(size, dtype=dtype)
    reduce_scatter_single(out, inputs[RANK].clone(), kind)
    same(out, piece, "reduce_scatter_single", dtype, op, size)
    out = torch.empty(size, dtype=dtype)
    dist.reduce_scatter(out, [chunk.clone() for chunk in inputs[RANK].view(SIZE, size)], kind)
    same(out, piece, "reduce_scatter", dtype, op, size)


def special_numbers(dtype: torch.dtype, op: str, size: int = 200) -> None:
    """Check that a minimum or maximum with NaN is NaN, as in torch, and has the same bits on all ranks."""
    kind = getattr(dist.ReduceOp, op)
    numbers = torch.tensor([0, -0.0, 1, -2, 1e-7, -1e-40, math.inf, -math.inf, math.nan], dtype=torch.float64).to(dtype)
    order = [torch.Generator().manual_seed(rank) for rank in range(SIZE)]
    parts = [numbers[torch.randint(len(numbers), (size * SIZE,), generator=generator)] for generator in order]
    expected = by_hand(parts, op)
    piece = slice(RANK * size, (RANK + 1) * size)
    dist.all_reduce(data := parts[RANK].clone(), kind)
    dist.all_reduce_coalesced(listed := [parts[RANK].clone()], kind)
    dist.reduce(at_root := parts[RANK].clone(), 0, kind)
    reduce_scatter_single(out := torch.empty(size, dtype=dtype), source := parts[RANK].clone(), kind)
    compared = [(data, expected), (listed[0], expected), (out, expected[piece]), (source, parts[RANK])]
    for result, right in [*compared, (at_root, expected if RANK == 0 else parts[RANK])]:
        assert torch.allclose(result, right, rtol=0, atol=0, equal_nan=True), (dtype, op, result, right)
    bits = data.view(torch.uint8)
    dist.broadcast(bits_of_root := bits.clone(), 0)
    same(bits, bits_of_root, "the same bits", dtype, op)


def gathers(dtype: torch.dtype, size: int) -> None:
    parts = [rank_data(rank, dtype, size) for rank in range(SIZE)]
    data = parts[RANK]
    out = [torch.empty_like(data) for _ in range(SIZE)]
    dist.all_gather(out, data)
    for rank in range(SIZE):
        same(out[rank], parts[rank], "all_gather", dtype, size)
    flat = torch.empty(size * SIZE, dtype=dtype)
    all_gather_single(flat, data)
    same(flat, torch.cat(parts), "all_gather_single", dtype, size)

    root = SIZE - 1
    out = [torch.empty_like(data) for _ in range(SIZE)] if root == RANK else None
    dist.gather(data, out, root)
    if out is not None:
        same(torch.stack(out), torch.stack(parts), "gather", dtype, size)
    element = torch.empty_like(data)
    dist.scatter(element, parts if root == RANK else None, root)
    same(element, data, "scatter", dtype, size)
    copy = data.clone()
    dist.broadcast(copy, root)
    same(copy, parts[root], "broadcast", dtype, size)


def exchanges(dtype: torch.dtype, size: int) -> None:
    inputs = [rank_data(rank, dtype, size * SIZE) for rank in range(SIZE)]
    out = torch.empty(size * SIZE, dtype=dtype)
    dist.all_to_all_single(out, inputs[RANK])
    data = slice(RANK * size, (RANK + 1) * size)
    same(out, torch.cat([part[data] for part in inputs]), "all_to_all_single", dtype, size)

    # Uneven sizes: rank a sends a + b + 1 elements to rank b, and nothing to itself.
    def message(a: int, b: int) -> torch.Tensor:
        return rank_data(a * SIZE + b, dtype, 0 if a == b else a + b + 1)

    sent = [message(RANK, peer) for peer in range(SIZE)]
    expected = [message(peer, RANK) for peer in range(SIZE)]
    out = [torch.empty_like(element) for element in expected]
    dist.all_to_all(out, sent)
    same(torch.cat(out), torch.cat(expected), "all_to_all", dtype, size)
    flat = torch.empty(sum(map(len, expected)), dtype=dtype)
    dist.all_to_all_single(flat, torch.cat(sent), list(map(len, expected)), list(map(len, sent)))
    same(flat, torch.cat(expected), "all_to_all_single with splits", dtype, size)

    if SIZE == 1:
        return
    out = torch.empty(size, dtype=dtype)
    ring = [
        dist.P2POp(dist.isend, rank_data(RANK, dtype, size), (RANK + 1) % SIZE),
        dist.P2POp(dist.irecv, out, (RANK - 1) % SIZE),
    ]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    same(out, rank_data((RANK - 1) % SIZE, dtype, size), "isend/irecv ring", dtype, size)


def coalesced() -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        inputs = [rank_data(RANK, dtype, size) for size in (2, 7)]
        outputs = [torch.empty(len(element) * SIZE, dtype=dtype) for element in inputs]
        with _coalescing_manager():
            for out, element in zip(outputs, inputs, strict=True):
                all_gather_single(out, element)
        for out, element in zip(outputs, inputs, strict=True):
            expected = torch.cat([rank_data(rank, dtype, len(element)) for rank in range(SIZE)])
            same(out, expected, "all_gather coalesced", dtype)
        wholes = [rank_data(RANK, dtype, size * SIZE) for size in (2, 7)]
        outputs = [torch.empty(len(element) // SIZE, dtype=dtype) for element in wholes]
        with _coalescing_manager():
            for out, element in zip(outputs, wholes, strict=True):
                reduce_scatter_single(out, element)
        for out in outputs:
            size = len(out)
            parts = [rank_data(rank, dtype, size * SIZE) for rank in range(SIZE)]
            expected = by_hand(parts, "SUM")[RANK * size : (RANK + 1) * size]
            same(out, expected, "reduce_scatter coalesced", dtype)


def shapes() -> None:
    """Check scalars, and dtypes that can be moved but not reduced."""
    number = torch.tensor(float(RANK))
    out = [torch.empty(()) for _ in range(SIZE)]
    dist.all_gather(out, number)
    same(torch.stack(out), torch.arange(float(SIZE)), "all_gather scalar")
    for dtype in (torch.complex64, torch.float8_e4m3fn):
        moved = torch.full((5,), 1.0 + RANK).to(dtype)
        dist.broadcast(moved, 0)
        same(moved.float().abs(), torch.ones(5), "broadcast", dtype)
    dist.barrier()


def large() -> None:
    """Check 40 MB, for which oneCCL uses another algorithm."""
    for dtype in (torch.float32, torch.bfloat16):
        size = 40_000_000 // dtype.itemsize
        data = torch.full((size,), RANK + 1.0, dtype=dtype)
        data[::3] = 2 * RANK
        dist.all_reduce(data)
        expected = torch.full((size,), sum(range(1, SIZE + 1)), dtype=dtype)
        expected[::3] = 2 * sum(range(SIZE))
        same(data, expected, "all_reduce", dtype, size)


init()
dtypes = (*FLOATS, *INTEGERS)
for dtype, op in itertools.product(dtypes, ARITHMETIC):
    reductions(dtype, op, 1000)
for dtype, op in itertools.product(FLOATS, ("MIN", "MAX")):
    special_numbers(dtype, op)
for dtype, op, size in itertools.product((torch.float32, torch.bfloat16), ("SUM", "AVG"), SIZES):
    reductions(dtype, op, size)
for dtype, op in itertools.product(INTEGERS, BITWISE):
    reductions(dtype, op, 1000)
for op in ("SUM", "MIN", "MAX", "PRODUCT", *BITWISE):
    reductions(torch.bool, op, 1000)
for dtype, size in [*itertools.product((*dtypes, torch.bool), (1000,)), *itertools.product((torch.bfloat16,), SIZES)]:
    gathers(dtype, size)
    exchanges(dtype, size)
coalesced()
shapes()
large()
print_line("fine, checked", checked)
dist.destroy_process_group()
sys.exit(0)
