"""Check operations on tensors of more than 2 GiB, or on small ones that are sent in pieces.

    large.py BYTES OPERATION...

Only a few elements are set and checked: near every power of two, and at both ends.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from start import RANK, SIZE, all_gather_single, init, print_line, reduce_scatter_single

BYTES = int(sys.argv[1])
ROOT = SIZE - 1
RANKS = range(SIZE)


def checked_positions(size: int) -> torch.Tensor:
    near = {(1 << bit) + offset for bit in range(64) for offset in (-1, 0, 1)}
    return torch.tensor(sorted({position for position in near | {0, size - 1} if position < size}))


def values(positions: torch.Tensor, rank: int) -> torch.Tensor:
    return ((positions % 7) + 10 * rank + 1).to(torch.int8)


def rank_data(rank: int = RANK, size: int = BYTES) -> torch.Tensor:
    out = zeros(size)
    out[checked_positions(size)] = values(checked_positions(size), rank)
    return out


def zeros(size: int = BYTES) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int8)  # pages that are never written need no memory


def check(result: torch.Tensor, *ranks: int, part: int = 0, parts: int = 1) -> None:
    """Check that the result is the sum of the ranks' data, or one of several parts of it."""
    first = part * result.numel()
    positions = checked_positions(parts * result.numel())
    positions = positions[(positions >= first) & (positions < first + result.numel())]
    assert torch.equal(result[positions - first], sum(values(positions, rank) for rank in ranks))


def broadcast() -> None:
    data = rank_data() if RANK == ROOT else zeros()
    dist.broadcast(data, ROOT)
    check(data, ROOT)


def all_reduce() -> None:
    dist.all_reduce(data := rank_data())
    check(data, *RANKS)


def reduce() -> None:
    dist.reduce(data := rank_data(), ROOT)
    if RANK == ROOT:
        check(data, *RANKS)


def reduce_scatter() -> None:
    reduce_scatter_single(out := zeros(), rank_data(size=BYTES * SIZE))
    check(out, *RANKS, part=RANK, parts=SIZE)


def all_gather() -> None:
    all_gather_single(out := zeros(BYTES * SIZE), rank_data())
    for rank, part in enumerate(out.split(BYTES)):
        check(part, rank)


def all_gather_uneven() -> None:
    sizes = [BYTES if rank == ROOT else 3 + rank for rank in RANKS]
    dist.all_gather(out := [zeros(size) for size in sizes], rank_data(size=sizes[RANK]))
    for rank, part in enumerate(out):
        check(part, rank)


def gather() -> None:
    dist.gather(rank_data(), out := [zeros() for _ in RANKS] if RANK == ROOT else None, ROOT)
    for rank, part in enumerate(out or []):
        check(part, rank)


def scatter() -> None:
    dist.scatter(out := zeros(), [rank_data(rank) for rank in RANKS] if RANK == ROOT else None, ROOT)
    check(out, RANK)


def all_to_all() -> None:
    """Send many bytes from the last rank to the first and to itself, and a few between the others."""

    def message_size(source: int, target: int) -> int:
        return BYTES if source == ROOT and target in (0, ROOT) else 5 + target

    to_send, origin = [message_size(RANK, rank) for rank in RANKS], [message_size(rank, RANK) for rank in RANKS]
    dist.all_to_all_single(out := zeros(sum(origin)), torch.cat([rank_data(size=n) for n in to_send]), origin, to_send)
    for rank, part in enumerate(out.split(origin)):
        check(part, rank)


def send() -> None:
    if RANK == ROOT:
        dist.send(rank_data(), 0)
    elif RANK == 0:
        dist.recv(data := zeros(), ROOT)
        check(data, ROOT)


init(300)
for name in sys.argv[2:]:
    globals()[name]()
    dist.barrier()
    print_line(name, "is right")
dist.destroy_process_group()
