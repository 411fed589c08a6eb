"""Check operations on tensors of more than 2 GiB, or on small ones that are sent in pieces.

    large.py BYTES OPERATION...

Only a few elements are set and checked: near every power of two, and at both ends.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from start import RANK, SIZE, init, print_line

BYTES = int(sys.argv[1])
ROOT = SIZE - 1


def checked_positions(size: int) -> torch.Tensor:
    near = {(1 << bit) + offset for bit in range(64) for offset in (-1, 0, 1)}
    return torch.tensor(sorted({position for position in near | {0, size - 1} if position < size}))


def values(positions: torch.Tensor, rank: int) -> torch.Tensor:
    return ((positions % 7) + 10 * rank + 1).to(torch.int8)


def rank_data(rank: int = RANK, size: int = BYTES) -> torch.Tensor:
    out = torch.zeros(size, dtype=torch.int8)  # pages that are never written need no memory
    out[checked_positions(size)] = values(checked_positions(size), rank)
    return out


def zeros(size: int = BYTES) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int8)


def check(result: torch.Tensor, expected: torch.Tensor, positions: torch.Tensor) -> None:
    assert torch.equal(result, expected), positions[result != expected]


def check_equal(result: torch.Tensor, rank: int) -> None:
    positions = checked_positions(result.numel())
    check(result[positions], values(positions, rank), positions)


def check_sum(result: torch.Tensor, positions: torch.Tensor) -> None:
    check(result, sum(values(positions, rank) for rank in range(SIZE)), positions)


def broadcast() -> None:
    data = rank_data() if RANK == ROOT else zeros()
    dist.broadcast(data, ROOT)
    check_equal(data, ROOT)


def all_reduce() -> None:
    data = rank_data()
    dist.all_reduce(data)
    check_sum(data[checked_positions(BYTES)], checked_positions(BYTES))


def reduce() -> None:
    data = rank_data()
    dist.reduce(data, ROOT)
    if RANK == ROOT:
        check_sum(data[checked_positions(BYTES)], checked_positions(BYTES))


def reduce_scatter() -> None:
    inputs, out = rank_data(size=BYTES * SIZE), zeros()
    dist.reduce_scatter_single(out, inputs)
    positions = checked_positions(BYTES * SIZE)
    positions = positions[(positions >= BYTES * RANK) & (positions < BYTES * (RANK + 1))]
    check_sum(out[positions - BYTES * RANK], positions)


def all_gather() -> None:
    out = zeros(BYTES * SIZE)
    dist.all_gather_single(out, rank_data())
    for rank in range(SIZE):
        check_equal(out[rank * BYTES : (rank + 1) * BYTES], rank)


def all_gather_uneven() -> None:
    sizes = [BYTES if rank == ROOT else 3 + rank for rank in range(SIZE)]
    out = [zeros(size) for size in sizes]
    dist.all_gather(out, rank_data(size=sizes[RANK]))
    for rank in range(SIZE):
        check_equal(out[rank], rank)


def gather() -> None:
    out = [zeros() for _ in range(SIZE)] if RANK == ROOT else None
    dist.gather(rank_data(), out, ROOT)
    for rank, part in enumerate(out or []):
        check_equal(part, rank)


def scatter() -> None:
    out = zeros()
    dist.scatter(out, [rank_data(rank) for rank in range(SIZE)] if RANK == ROOT else None, ROOT)
    check_equal(out, RANK)


def all_to_all() -> None:
    """Send many bytes from the last rank to the first and to itself, and a few between the others."""

    def message_size(source: int, target: int) -> int:
        return BYTES if source == ROOT and target in (0, ROOT) else 5 + target

    sizes_to_send = [message_size(RANK, rank) for rank in range(SIZE)]
    origin = [message_size(rank, RANK) for rank in range(SIZE)]
    out = zeros(sum(origin))
    dist.all_to_all_single(out, torch.cat([rank_data(size=size) for size in sizes_to_send]), origin, sizes_to_send)
    for rank, part in enumerate(out.split(origin)):
        check_equal(part, rank)


def send() -> None:
    if RANK == ROOT:
        dist.send(rank_data(), 0)
    elif RANK == 0:
        data = zeros()
        dist.recv(data, ROOT)
        check_equal(data, ROOT)


init(300)
for name in sys.argv[2:]:
    globals()[name]()
    dist.barrier()
    print_line(name, "is right")
dist.destroy_process_group()
