"""Operations on tensors of a given size: of more than 2 GiB, or small ones that travel in pieces.

    large.py BYTES OPERATION...

Only a few elements are set and looked at: around every power of two, and at both ends.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from start import RANK, SIZE, init, say

BYTES = int(sys.argv[1])
ROOT = SIZE - 1


def places(size: int) -> torch.Tensor:
    near = {at + off for bit in range(64) for at in [1 << bit] for off in (-1, 0, 1)}
    return torch.tensor(sorted({at for at in near | {0, size - 1} if at < size}))


def values(at: torch.Tensor, rank: int) -> torch.Tensor:
    return ((at % 7) + 10 * rank + 1).to(torch.int8)


def given(rank: int = RANK, size: int = BYTES) -> torch.Tensor:
    out = torch.zeros(size, dtype=torch.int8)  # pages that nobody writes take no memory
    out[places(size)] = values(places(size), rank)
    return out


def blank(size: int = BYTES) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int8)


def same(got: torch.Tensor, rank: int) -> None:
    at = places(got.numel())
    assert torch.equal(got[at], values(at, rank)), (rank, at[got[at] != values(at, rank)])


def summed(got: torch.Tensor, at: torch.Tensor) -> None:
    wanted = sum(values(at, rank) for rank in range(SIZE))
    assert torch.equal(got, wanted), at[got != wanted]


def broadcast() -> None:
    data = given() if RANK == ROOT else blank()
    dist.broadcast(data, ROOT)
    same(data, ROOT)


def all_reduce() -> None:
    data = given()
    dist.all_reduce(data)
    summed(data[places(BYTES)], places(BYTES))


def reduce() -> None:
    data = given()
    dist.reduce(data, ROOT)
    if RANK == ROOT:
        summed(data[places(BYTES)], places(BYTES))


def reduce_scatter() -> None:
    whole, out = given(size=BYTES * SIZE), blank()
    dist.reduce_scatter_single(out, whole)
    at = places(BYTES * SIZE)
    at = at[(at >= BYTES * RANK) & (at < BYTES * (RANK + 1))]
    summed(out[at - BYTES * RANK], at)


def all_gather() -> None:
    out = blank(BYTES * SIZE)
    dist.all_gather_single(out, given())
    for rank in range(SIZE):
        same(out[rank * BYTES : (rank + 1) * BYTES], rank)


def all_gather_uneven() -> None:
    sizes = [BYTES if rank == ROOT else 3 + rank for rank in range(SIZE)]
    out = [blank(size) for size in sizes]
    dist.all_gather(out, given(size=sizes[RANK]))
    for rank in range(SIZE):
        same(out[rank], rank)


def gather() -> None:
    out = [blank() for _ in range(SIZE)] if RANK == ROOT else None
    dist.gather(given(), out, ROOT)
    for rank, one in enumerate(out or []):
        same(one, rank)


def scatter() -> None:
    out = blank()
    dist.scatter(out, [given(rank) for rank in range(SIZE)] if RANK == ROOT else None, ROOT)
    same(out, RANK)


def all_to_all() -> None:
    """The last rank sends much to the first, and keeps as much; the others a few bytes."""

    def message(source: int, to: int) -> int:
        return BYTES if source == ROOT and to in (0, ROOT) else 5 + to

    to = [message(RANK, rank) for rank in range(SIZE)]
    origin = [message(rank, RANK) for rank in range(SIZE)]
    out = blank(sum(origin))
    dist.all_to_all_single(out, torch.cat([given(size=size) for size in to]), origin, to)
    for rank, part in enumerate(out.split(origin)):
        same(part, rank)


def send() -> None:
    if RANK == ROOT:
        dist.send(given(), 0)
    elif RANK == 0:
        data = blank()
        dist.recv(data, ROOT)
        same(data, ROOT)


init(300)
for name in sys.argv[2:]:
    globals()[name]()
    dist.barrier()
    say(name, "is right")
dist.destroy_process_group()
