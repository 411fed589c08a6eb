"""Check tensors in memory that the ranks of a host share: heap.py CASE, one of CASES."""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from shared import added, numbers
from start import RANK, SIZE, all_gather_single, error_of, init, print_line, reduce_scatter_single, run_in_child

CPU = torch.device("cpu")
LENGTHS = (10, 70_001, 1_000_003, 3_000_001)  # short, few rounds, many rounds, bypassing the caches
ROUTE_TURNS = 12  # of four or more rounds each; both routes have been tried after 24 rounds


def backend():
    return dist.group.WORLD._get_backend(CPU)


def heap_tensor(length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return backend().allocate_tensor(length, dtype=dtype, device=CPU)


def is_in_heap(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is in a mapped memory file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return "orch-ccl" in line
    return False


Allocate = Callable[[int, torch.dtype], torch.Tensor]


def ordinary(length: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(length, dtype=dtype)


def check_all(allocate: Allocate, parts: list[torch.Tensor]) -> None:
    """Check all collectives with tensors from this allocator. `parts`: the input of each rank."""
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


def collectives() -> None:
    """Check collectives with all tensors in the heap, with one elsewhere, and with odd offsets."""
    assert is_in_heap(heap_tensor(1))
    allocators: list[Allocate] = [
        heap_tensor,
        lambda length, dtype: (ordinary if RANK == 0 else heap_tensor)(length, dtype),
        lambda length, dtype: heap_tensor(length + 17, dtype)[17:],
    ]
    for dtype in (torch.float32, torch.bfloat16):
        for length in LENGTHS:
            parts = [numbers(rank, length * SIZE, dtype) for rank in range(SIZE)]
            for allocate in allocators:
                check_all(allocate, parts)


def routes() -> None:
    for turn in range(ROUTE_TURNS):
        check_all(heap_tensor, [numbers(rank + SIZE * turn, 300_001 * SIZE, torch.float32) for rank in range(SIZE)])


def ddp() -> None:
    """Check that DDP's buckets, also rebuilt ones, are in the heap and give the same weights."""
    from torch.nn.parallel import DistributedDataParallel

    def trained() -> tuple[list[torch.Tensor], list[bool]]:
        torch.manual_seed(3)
        model = DistributedDataParallel(
            torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.ReLU(), torch.nn.Linear(500, 2)),
            gradient_as_bucket_view=True,
        )
        in_heap_flags: list[bool] = []

        def record_bucket(group, bucket):
            in_heap_flags.append(is_in_heap(bucket.buffer()))
            return group.allreduce([bucket.buffer().div_(SIZE)]).get_future().then(lambda result: result.value()[0])

        model.register_comm_hook(dist.group.WORLD, record_bucket)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            model(numbers(RANK + SIZE * step, 300, torch.float32)).square().sum().backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()], in_heap_flags

    with_heap, in_heap_flags = trained()
    assert all(in_heap_flags), in_heap_flags
    os.environ["DDP_DISABLE_COMM_MEM"] = "1"
    without_heap, in_heap_flags = trained()
    assert not any(in_heap_flags), in_heap_flags
    assert all(map(torch.equal, with_heap, without_heap))


def fsdp() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def trained(with_heap: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.ReLU(), torch.nn.Linear(500, 4))
        fully_shard(model, mesh=init_device_mesh("cpu", (SIZE,)))
        model.set_allocate_memory_from_process_group_for_comm(with_heap)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(numbers(RANK + SIZE * step, 300, torch.float32)).square().sum().backward()
            optimizer.step()
        return [parameter.full_tensor() for parameter in model.parameters()]

    assert all(map(torch.equal, trained(True), trained(False)))


def check_forked_child() -> None:
    """Check that a forked child gets private copies and may free and allocate tensors."""
    tensor = heap_tensor(100_000).fill_(1)

    def use_tensors() -> None:
        tensor.add_(1)
        assert (tensor == 2).all()
        assert not is_in_heap(heap_tensor(10))

    assert run_in_child(use_tensors) == 0
    assert (tensor == 1).all()
    dist.all_reduce(tensor)
    assert (tensor == SIZE).all()


def check_reuse_after_failure() -> None:
    """Check that freed memory is reused unless other ranks may still write to it."""

    def addresses(count: int) -> set[int]:
        return {heap_tensor(50_000).data_ptr() for _ in range(count)}

    dist.all_reduce(heap_tensor(50_000))
    assert len(addresses(5)) == 1
    if RANK == 0:
        tensor = heap_tensor(50_000)
        address = tensor.data_ptr()
        assert "rank 1 (" in error_of(lambda: dist.all_reduce(tensor))
        del tensor
        gc.collect()
        assert address not in addresses(5)
    print_line("fine")
    os._exit(0)


def given_up() -> None:
    """Check that a late rank does not write to a tensor after the timeout of its owner."""
    tensor = heap_tensor(1_000_003).fill_(1)
    store = dist.distributed_c10d._get_default_store()
    if RANK == 0:
        assert "timed out" in error_of(lambda: dist.all_reduce(tensor))
        tensor.fill_(7)
        store.set("given up", "1")
        store.wait(["tried"], timedelta(seconds=50))
        assert (tensor == 7).all()
    else:
        store.wait(["given up"], timedelta(seconds=50))
        error = error_of(lambda: dist.all_reduce(tensor))
        assert "rank 0 (" in error, error
        assert "has left this group" in error, error
        store.set("tried", "1")
    print_line("fine")
    os._exit(0)


def interrupted() -> None:
    """Check that no rank writes to a tensor after abort() has returned during an operation."""
    for turn in range(20):
        group = dist.new_group()
        tensor = heap_tensor(3_000_001).fill_(1)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        if RANK == 0:
            time.sleep(0.0005 * turn)
            group._get_backend(CPU).abort()
            error_of(work.wait)
            tensor.fill_(7)
            deadline = time.monotonic() + 0.1
            while time.monotonic() < deadline:
                assert (tensor == 7).all(), turn
        else:
            error_of(work.wait)
        dist.barrier()


def shared_mappings() -> list[tuple[int, str]]:
    """Return the size in KiB and the kernel's flags of each mapping of shared memory."""
    mappings, size, is_shared = [], 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):  # the first line of the next mapping
            is_shared = "orch-ccl" in line
        elif fields[0] == "Size:":
            size = int(fields[1])
        elif fields[0] == "VmFlags:" and is_shared:
            mappings.append((size, line))
    return mappings


def mapped() -> None:
    """Check that only used memory is mapped, and that no core dump includes it."""
    tensor = heap_tensor(1_000_003).fill_(1)
    dist.all_reduce(tensor)
    megabytes = 4 * SIZE + 64  # the tensors of all ranks and the group's segment

    def check() -> None:
        mappings = shared_mappings()
        small = sum(size for size, _ in mappings) < megabytes * 1024
        assert mappings and small and all(" dd" in flags for _, flags in mappings), mappings  # noqa: PT018

    check()
    assert run_in_child(check) == 0


def no_heap() -> None:
    assert not backend().supports_tensor_alloc(CPU)
    tensor = torch.ones(70_001)
    dist.all_reduce(tensor)
    assert (tensor == SIZE).all()


def disabled() -> None:
    """Check that allocation fails if shared memory is off."""
    assert not backend().supports_tensor_alloc(CPU)
    print_line(error_of(lambda: heap_tensor(10)).splitlines()[0])


CASES: dict[str, Callable[[], None]] = {
    "collectives": collectives,
    "routes": routes,
    "ddp": ddp,
    "fsdp": fsdp,
    "forked": check_forked_child,
    "failed": check_reuse_after_failure,
    "given-up": given_up,
    "interrupted": interrupted,
    "mapped": mapped,
    "no-heap": no_heap,
    "disabled": disabled,
}


def main() -> None:
    case = sys.argv[1]
    warnings.filterwarnings("ignore", category=FutureWarning)
    if case == "no-heap":  # files may be as long as the group's segment, but not as a heap
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))
    init(3 if case in ("failed", "given-up") else 20)
    CASES[case]()
    print_line("fine")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
