"""Collectives through shared memory: shared.py same-bits | every-route | other-call | two-roots |
no-memory | no-memfd | default."""

from __future__ import annotations

import ctypes
import resource
import struct
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from start import RANK, SIZE, init, say

LENGTHS = (1, 1000, 5000, 70_001, 1_000_003)  # short, in one round, in many
ROUTE_TURNS = 12  # of four rounds and more each; both routes have been tried after 24
LONG = 3_000_001  # so long that results go past the caches


def mapped() -> bool:
    return "orch-ccl" in Path("/proc/self/maps").read_text()


def numbers(rank: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(rank)).to(dtype)


def added(parts: list[torch.Tensor]) -> torch.Tensor:
    """In the order of the ranks, in float32 and rounded once."""
    wanted = parts[0].float()
    for part in parts[1:]:
        wanted = wanted + part.float()
    return wanted.to(parts[0].dtype)


def same_bits() -> None:
    """Whatever the length, and wherever in memory a long result begins."""
    assert mapped()
    for dtype in (torch.float32, torch.bfloat16):
        for length in LENGTHS:
            parts = [numbers(rank, length, dtype) for rank in range(SIZE)]
            mine = parts[RANK].clone()
            dist.all_reduce(mine)
            assert torch.equal(mine, added(parts)), (dtype, length)
        scatter_and_gather(dtype)
    say("fine")


def scatter_and_gather(dtype: torch.dtype) -> None:
    wholes = [numbers(rank, LONG * SIZE, dtype) for rank in range(SIZE)]
    wanted = added(wholes)
    mine = slice(RANK * LONG, (RANK + 1) * LONG)
    for shift in (0, 1, 17):  # not at the beginning of a cache line
        part = torch.zeros(LONG + shift, dtype=dtype)[shift:]
        whole = torch.zeros(LONG * SIZE + shift, dtype=dtype)[shift:]
        dist.reduce_scatter_tensor(part, wholes[RANK])
        assert torch.equal(part, wanted[mine]), (dtype, shift)
        dist.all_gather_into_tensor(whole, part)
        assert torch.equal(whole, wanted), (dtype, shift)
        whole.zero_()[mine] = part
        dist.all_gather_into_tensor(whole, whole[mine])  # in place, as FSDP does
        assert torch.equal(whole, wanted), (dtype, shift)


def every_route() -> None:
    """So often that both routes have had their turns, and never with the same numbers."""
    for length in (70_001, 1_000_003):
        for turn in range(ROUTE_TURNS):
            parts = [numbers(rank + SIZE * turn, length, torch.float32) for rank in range(SIZE)]
            wanted, mine = added(parts), parts[RANK].clone()
            dist.all_reduce(mine)
            assert torch.equal(mine, wanted), (length, turn)
            gathered = torch.zeros(SIZE * length)
            dist.all_gather_into_tensor(gathered, parts[RANK])
            assert torch.equal(gathered, torch.cat(parts)), (length, turn)
            dist.reduce_scatter_tensor(mine, gathered)
            assert torch.equal(mine, added([parts[RANK]] * SIZE)), (length, turn)
            dist.broadcast(mine, turn % SIZE)
            assert torch.equal(mine, added([parts[turn % SIZE]] * SIZE)), (length, turn)
    say("fine")


def other_call() -> None:
    dist.all_reduce(torch.ones(10 + RANK))


def two_roots() -> None:
    """Broadcast as root on each rank; calls that agree afterwards must not hide it."""
    dist.broadcast(torch.ones(70_001), RANK)
    for _ in range(20):
        dist.all_reduce(torch.ones(10))


def no_memory() -> None:
    assert not mapped()
    ones = torch.ones(70_001)
    dist.all_reduce(ones)
    assert (ones == SIZE).all()
    say("fine")


def forbid_memfd() -> None:
    """Make memfd_create fail with EPERM in this thread, as a container may."""
    load, equal, result, allow, fail = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050001
    memfd_create = 319  # on x86-64
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in ((load, 0, 0, 0), (equal, 0, 1, memfd_create), (result, 0, 0, fail), (result, 0, 0, allow))
    )
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(instructions))
    set_no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(set_no_new_privileges, 1, 0, 0, 0) == 0
    assert prctl(set_seccomp, filter_mode, ctypes.create_string_buffer(header), 0, 0) == 0


def falls_back() -> None:
    """Check that a later group falls back as well, without another warning."""
    no_memory()
    dist.all_reduce(torch.ones(3), group=dist.new_group())


def default() -> None:
    assert mapped()
    dist.barrier()
    say("fine")


def main() -> None:
    how = sys.argv[1]
    if how == "no-memory":  # longer files than this cannot be made
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    if how == "no-memfd":
        forbid_memfd()
    init(20)
    {
        "same-bits": same_bits,
        "every-route": every_route,
        "other-call": other_call,
        "two-roots": two_roots,
        "no-memory": falls_back,
        "no-memfd": falls_back,
        "default": default,
    }[how]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
