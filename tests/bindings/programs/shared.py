"""Check collectives through shared memory: shared.py CASE, one of CASES."""

from __future__ import annotations

import ctypes
import resource
import struct
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from start import RANK, SIZE, init, print_line

LENGTHS = (1, 1000, 5000, 70_001, 1_000_003)  # short, one round, many rounds
ROUTE_TURNS = 12  # of four or more rounds each; both routes have been tried after 24 rounds
SLOTS, SLOT_BYTES, PAGE = 4, 256 * 1024, 4096  # of each of two ranks; see shared_segment.cpp and memory_file.h
LONG = 3_000_001  # so long that results bypass the caches


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


def same_bits() -> None:
    """Check the bits of sums for all lengths and for several alignments of long results."""
    assert mapped()
    for dtype in (torch.float32, torch.bfloat16):
        for length in LENGTHS:
            parts = [numbers(rank, length, dtype) for rank in range(SIZE)]
            data = parts[RANK].clone()
            dist.all_reduce(data)
            assert torch.equal(data, added(parts)), (dtype, length)
        scatter_and_gather(dtype)


def scatter_and_gather(dtype: torch.dtype) -> None:
    wholes = [numbers(rank, LONG * SIZE, dtype) for rank in range(SIZE)]
    expected = added(wholes)
    data = slice(RANK * LONG, (RANK + 1) * LONG)
    for shift in (0, 1, 17):  # not at the beginning of a cache line
        part = torch.zeros(LONG + shift, dtype=dtype)[shift:]
        gathered = torch.zeros(LONG * SIZE + shift, dtype=dtype)[shift:]
        dist.reduce_scatter_tensor(part, wholes[RANK])
        assert torch.equal(part, expected[data]), (dtype, shift)
        dist.all_gather_into_tensor(gathered, part)
        assert torch.equal(gathered, expected), (dtype, shift)
        gathered.zero_()[data] = part
        dist.all_gather_into_tensor(gathered, gathered[data])  # in place, as FSDP does
        assert torch.equal(gathered, expected), (dtype, shift)


def every_route() -> None:
    """Repeat collectives until both routes have been tried, each time with other numbers."""
    for length in (70_001, 1_000_003):
        for turn in range(ROUTE_TURNS):
            parts = [numbers(rank + SIZE * turn, length, torch.float32) for rank in range(SIZE)]
            expected, data = added(parts), parts[RANK].clone()
            dist.all_reduce(data)
            assert torch.equal(data, expected), (length, turn)
            gathered = torch.zeros(SIZE * length)
            dist.all_gather_into_tensor(gathered, parts[RANK])
            assert torch.equal(gathered, torch.cat(parts)), (length, turn)
            dist.reduce_scatter_tensor(data, gathered)
            assert torch.equal(data, added([parts[RANK]] * SIZE)), (length, turn)
            dist.broadcast(data, turn % SIZE)
            assert torch.equal(data, added([parts[turn % SIZE]] * SIZE)), (length, turn)


def other_call() -> None:
    dist.all_reduce(torch.ones(10 + RANK))


def two_roots() -> None:
    """Broadcast as root on each rank; calls that agree afterwards must not hide it."""
    dist.broadcast(torch.ones(70_001), RANK)
    for _ in range(20):
        dist.all_reduce(torch.ones(10))


def no_memory() -> None:
    assert not mapped()
    tensor = torch.ones(70_001)
    dist.all_reduce(tensor)
    assert (tensor == SIZE).all()


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


def allocated_slots() -> list[list[int]]:
    """Return the pages of each rank's slots that are allocated, in the memory that the ranks of a group share.

    It is the longest of the bindings' mappings and ends with SLOTS slots for each rank, in the order of the ranks.
    """
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "orch-ccl" in line]
    ranges = [[int(address, 16) for address in line.split()[0].split("-")] for line in lines]
    begin, end = max(ranges, key=lambda addresses: addresses[1] - addresses[0])
    pages = ctypes.create_string_buffer((end - begin) // PAGE)
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), pages) == 0
    count = SLOTS * SLOT_BYTES // PAGE  # of a rank
    first = len(pages) - SIZE * count
    slots = (pages.raw[first + rank * count : first + (rank + 1) * count] for rank in range(SIZE))
    return [[index for index, page in enumerate(part) if page & 1] for part in slots]


def own_pages() -> None:
    """Check that rank 0 touches only its own slots, because the first touch decides the NUMA node of a page."""
    assert mapped()
    dist.barrier()
    store, before = dist.distributed_c10d._get_default_store(), allocated_slots()
    data = torch.ones(SLOT_BYTES)
    if RANK == 1:
        store.get("rank 0 has staged its data")
    work = dist.all_reduce(data, async_op=True)
    if RANK == 0:
        deadline = time.monotonic() + 10
        while allocated_slots()[0] == before[0] and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        after = allocated_slots()
        assert len(after[0]) > len(before[0])
        assert after[1] == before[1]
        store.set("rank 0 has staged its data", "1")
    work.wait()
    assert torch.equal(data, torch.full((SLOT_BYTES,), 2.0))
    assert all(len(pages) > len(earlier) for pages, earlier in zip(allocated_slots(), before, strict=True))


CASES = {
    "same-bits": same_bits,
    "every-route": every_route,
    "other-call": other_call,
    "two-roots": two_roots,
    "no-memory": falls_back,
    "no-memfd": falls_back,
    "own-pages": own_pages,
}


def main() -> None:
    case = sys.argv[1]
    if case == "no-memory":  # longer files cannot be created
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    if case == "no-memfd":
        forbid_memfd()
    init(20)
    CASES[case]()
    print_line("fine")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
