"""Forge values in the store and in shared memory: hostile.py CASE.

Rank 0 is the attacker, rank 1 the victim. The cases of FILES replace the id of rank 0's file that
the victim reads; `offsets` replaces the offset of rank 0's tensor after rank 0 has announced it;
`random` changes values at random. memory_file.cpp forges more files.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from heap import is_in_heap
from start import RANK, SIZE, error_of, init, print_line

CASE = sys.argv[1]
PAGE, PAGES = 4096, 16
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
TOKEN = 77
LENGTH = 50_000


def memory_file() -> int:
    """Return the descriptor of a file that passes all checks."""
    file = os.memfd_create("orch-ccl", os.MFD_ALLOW_SEALING)
    os.truncate(file, PAGES * PAGE)
    os.pwrite(file, TOKEN.to_bytes(8, sys.byteorder), 0)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
    return file


def of_another_process() -> str:
    file = memory_file()
    child = subprocess.Popen(["sleep", "60"], pass_fds=[file])
    return f"{child.pid} {file} {PAGES * PAGE} {TOKEN}"


FILES: dict[str, Callable[[], str]] = {"another-process": of_another_process, "empty": lambda: ""}
HEAP_BYTES = min(256 << 30, os.sysconf("SC_PHYS_PAGES") * PAGE)
# In the header, at the end, beyond it, far beyond it, and one that overflows when a length is added.
FORGED_OFFSETS = (0, HEAP_BYTES - PAGE, HEAP_BYTES + PAGE, 2**62, 2**64 - 2)
ROUNDS = 15
OWN_KEYS = ("hello/", "shared/", "kept/")  # The others are those of oneCCL.


class Rewriting(dist.Store):
    """A store that replaces one value."""

    def __init__(self, store: dist.Store, suffix: str, value: str) -> None:
        super().__init__()
        self.store, self.suffix, self.value = store, suffix, value

    def get(self, key: str) -> bytes:
        return self.value.encode() if key.endswith(self.suffix) else self.store.get(key)

    def set(self, key: str, value: object) -> None:
        self.store.set(key, value)

    def check(self, keys: list[str]) -> bool:
        return self.store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.store.wait(keys, timeout)

    def clone(self) -> Rewriting:
        return self


def replace_file(store: dist.Store) -> None:
    """Forge the id of a file for the victim, once for the segment and once for the heap."""
    if RANK == 0:
        store.set("forged", FILES[CASE]())
    forged = store.get("forged").decode()
    objects = []
    for suffix in ("shared/segment/0", "shared/heap/0"):
        prefixed = dist.PrefixStore(suffix, store)
        visible_store = prefixed if RANK == 0 else Rewriting(prefixed, suffix, "ok " + forged)
        group = dist.ProcessGroupCCL(visible_store, RANK, SIZE, timedelta(seconds=30))
        objects += [visible_store, group]
        tensor = torch.ones(LENGTH)
        group.allreduce([tensor]).wait()
        assert (tensor == SIZE).all()
        assert not group.supports_tensor_alloc(torch.device("cpu"))
    print_line("fine")


def mappings() -> Iterator[tuple[int, int]]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "orch-ccl" in line:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            yield begin, end


def announced_offsets(offset: int) -> list[ctypes.c_uint64]:
    """Return the variables of the segment that hold this offset of a tensor in the heap."""
    variables = []
    for begin, end in mappings():
        for address in range(begin, min(end, begin + 8 * PAGE), 8):
            variable = ctypes.c_uint64.from_address(address)
            if variable.value == offset:
                variables.append(variable)
    return variables


# begin(group, tensor in the heap, part) starts an operation that reads the tensor in place.
OPERATIONS: dict[str, Callable[[dist.ProcessGroup, torch.Tensor, torch.Tensor], dist.Work]] = {
    "all_reduce": lambda group, tensor, part: group.allreduce([tensor]),
    "reduce_scatter": lambda group, tensor, part: group._reduce_scatter_base(part, tensor),
    "all_gather": lambda group, tensor, part: group._allgather_base(part, tensor),
}


def replace_offsets() -> None:
    """Announce offsets outside the heap in each operation that reads tensors in place."""
    store = dist.distributed_c10d._get_default_store()
    for forged, (name, begin) in itertools.product(FORGED_OFFSETS, OPERATIONS.items()):
        group = dist.new_group()
        backend = group._get_backend(torch.device("cpu"))
        tensor = backend.allocate_tensor(SIZE * LENGTH, dtype=torch.float32, device=torch.device("cpu"))
        part = torch.zeros(SIZE * SIZE * LENGTH if name == "all_gather" else LENGTH)
        assert is_in_heap(tensor.fill_(1))
        if RANK == 0:
            heap = next(first for first, end in mappings() if first <= tensor.data_ptr() < end)
            work = begin(group, tensor, part)
            variables = announced_offsets(tensor.data_ptr() - heap)
            assert variables
            assert not work.is_completed()
            for variable in variables:
                variable.value = forged
            store.set(f"{name}/{forged}/forged", "1")
            store.wait([f"{name}/{forged}/seen"], timedelta(seconds=50))
        else:
            store.wait([f"{name}/{forged}/forged"], timedelta(seconds=50))
            error = error_of(lambda: begin(group, tensor, part).wait())  # noqa: B023
            assert "announced a tensor outside its shared memory" in error, (name, forged, error)
            store.set(f"{name}/{forged}/seen", "1")
    print_line("fine")
    os._exit(0)


class Damaging(Rewriting):
    """A store that damages one of the values that a rank reads from the others, the `turn`-th."""

    def __init__(self, store: dist.Store, seed: int) -> None:
        super().__init__(store, "", "")
        self.random = random.Random(seed)
        self.turn = self.random.randrange(6)

    def get(self, key: str) -> bytes:
        value = self.store.get(key)
        if not any(name in key for name in OWN_KEYS) or key.endswith(f"/{RANK}"):
            return value
        self.turn -= 1
        if self.turn != -1:
            return value
        forged = damaged(value, self.random)
        print_line("forged", key, value, forged[:200])
        return forged


def damaged(value: bytes, chance: random.Random) -> bytes:
    """Return the value with a change of a random kind."""
    offset = chance.randrange(len(value) + 1)
    noise = chance.randbytes(chance.choice((1, 1, 1, 20, 5000)))
    digits = str(chance.choice((-1, 0, 2**31, 2**63, 2**64 - 1, 10**40))).encode()
    fields = value.split(b" ")
    fields[chance.randrange(len(fields))] = digits
    return chance.choice(
        (value[:offset] + noise + value[offset + 1 :], value[:offset], value + noise, noise, b" ".join(fields))
    )


def damage_values(store: dist.Store) -> None:
    """Set up groups with a damaged value each: both ranks continue or raise an error, and none crashes or hangs."""
    errors = 0
    for seed in range(int(os.environ["FIRST_SEED"]), int(os.environ["FIRST_SEED"]) + ROUNDS):
        print_line("seed", seed)
        prefixed = dist.PrefixStore(f"round {seed}", store)
        visible_store = prefixed if RANK == 0 else Damaging(prefixed, seed)
        tensor = torch.ones(LENGTH)

        def use(visible_store: dist.Store = visible_store, tensor: torch.Tensor = tensor) -> None:
            dist.ProcessGroupCCL(visible_store, RANK, SIZE, timedelta(seconds=2)).allreduce([tensor]).wait()

        error = error_of(use)
        errors += error != "no error"
        assert error != "no error" or (tensor == SIZE).all()
        prefixed.set(f"ended/{RANK}", "")
        prefixed.wait(["ended/0", "ended/1"], timedelta(seconds=20))
    print_line("fine, errors:", errors)
    if RANK == 0:
        store.wait(["victim/ended"], timedelta(seconds=20))  # Rank 0 holds the store.
    else:
        store.set("victim/ended", "")
    os._exit(0)


def main() -> None:
    if CASE == "offsets":
        init(30)
        replace_offsets()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, SIZE, is_master=RANK == 0)
    if CASE == "random":
        damage_values(store)
    else:
        replace_file(store)


main()
