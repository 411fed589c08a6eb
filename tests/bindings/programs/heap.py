"""Check tensors in memory that the ranks of a host share: heap.py CASE, a function of this file."""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from shared import Allocate, check_lengths_and_routes, numbers, ordinary
from start import RANK, SIZE, error_of, init, print_line

CPU = torch.device("cpu")


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


def collectives() -> None:
    """Check collectives with all tensors in the heap, with one elsewhere, with odd offsets, and on both routes."""
    assert is_in_heap(heap_tensor(1))
    smaps = Path("/proc/self/smaps").read_text().split("VmFlags:")
    flags = [flags.partition("\n")[0] for mapping, flags in pairwise(smaps) if "orch-ccl" in mapping]
    assert all(" dd" in line for line in flags), "core dumps include the memory"
    allocators: list[Allocate] = [
        heap_tensor,
        lambda length, dtype: (ordinary if RANK == 0 else heap_tensor)(length, dtype),
        lambda length, dtype: heap_tensor(length + 17, dtype)[17:],
    ]
    check_lengths_and_routes(*allocators)


def train(wrap: Callable[[torch.nn.Module], torch.nn.Module], steps: int) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = wrap(torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.ReLU(), torch.nn.Linear(500, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(numbers(RANK + SIZE * step, 300, torch.float32)).square().sum().backward()
        optimizer.step()
    return list(model.parameters())


def ddp() -> None:
    """Check that DDP's buckets, also rebuilt ones, are in the heap and give the same weights."""
    in_heap_flags: list[bool] = []

    def record_bucket(group, bucket):
        in_heap_flags.append(is_in_heap(bucket.buffer()))
        return group.allreduce([bucket.buffer().div_(SIZE)]).get_future().then(lambda result: result.value()[0])

    def wrap(model: torch.nn.Module) -> torch.nn.Module:
        in_heap_flags.clear()
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        model.register_comm_hook(dist.group.WORLD, record_bucket)
        return model

    with_heap = train(wrap, steps=4)
    assert all(in_heap_flags), in_heap_flags
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2, dtype=torch.complex64))
    torch.view_as_real(layer(torch.ones(1, 3, dtype=torch.complex64)) * (RANK + 1)).sum().backward()
    assert all((parameter.grad == (1 + 1j) * (SIZE + 1) / 2).all() for parameter in layer.parameters())
    os.environ["DDP_DISABLE_COMM_MEM"] = "1"
    without_heap = train(wrap, steps=4)
    assert not any(in_heap_flags), in_heap_flags
    assert all(map(torch.equal, with_heap, without_heap))


def fsdp() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def trained(with_heap: bool) -> list[torch.Tensor]:
        def wrap(model: torch.nn.Module) -> torch.nn.Module:
            fully_shard(model, mesh=init_device_mesh("cpu", (SIZE,)))
            model.set_allocate_memory_from_process_group_for_comm(with_heap)
            return model

        return [parameter.full_tensor() for parameter in train(wrap, steps=3)]

    assert all(map(torch.equal, trained(True), trained(False)))


def reuse_after_failure() -> None:
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


def no_heap() -> None:
    assert not backend().supports_tensor_alloc(CPU)
    tensor = torch.ones(70_001)
    dist.all_reduce(tensor)
    assert (tensor == SIZE).all()


def main() -> None:
    case = sys.argv[1]
    warnings.filterwarnings("ignore", category=FutureWarning)
    if case == "no_heap":  # files may be as long as the group's segment, but not as a heap
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))
    init(3 if case in ("reuse_after_failure", "given_up") else 20)
    globals()[case]()
    print_line("fine")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
