"""Tensors in memory that the ranks of a host share: heap.py collectives | routes | ddp | fsdp |
forked | failed | given-up | interrupted | mapped | no-heap | alone."""

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
from start import RANK, SIZE, all_gather_single, init, reduce_scatter_single, say

CPU = torch.device("cpu")
LENGTHS = (10, 70_001, 1_000_003, 3_000_001)  # short, in few rounds, in many, past the caches
ROUTE_TURNS = 12  # of four rounds and more each; both routes have been tried after 24


def backend():
    return dist.group.WORLD._get_backend(CPU)


def in_heap(length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return backend().allocate_tensor(length, dtype=dtype, device=CPU)


def is_in_heap(tensor: torch.Tensor) -> bool:
    """Whether it is in a file without a name that this process maps."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return "orch-ccl" in line
    return False


Room = Callable[[int, torch.dtype], torch.Tensor]


def ordinary(length: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(length, dtype=dtype)


def check_all(room: Room, parts: list[torch.Tensor]) -> None:
    """`parts`: what each rank gives."""
    dtype, length, wanted = parts[0].dtype, parts[0].numel() // SIZE, added(parts)
    mine = slice(RANK * length, (RANK + 1) * length)
    whole, part, result = room(length * SIZE, dtype), room(length, dtype), ordinary(length, dtype)
    whole.copy_(parts[RANK])
    dist.all_reduce(whole)
    assert torch.equal(whole, wanted), (dtype, length)
    whole.copy_(parts[RANK])
    reduce_scatter_single(result, whole)
    assert torch.equal(result, wanted[mine]), (dtype, length)
    assert torch.equal(whole, parts[RANK]), (dtype, length)
    part.copy_(result)
    all_gather_single(whole.zero_(), part)
    assert torch.equal(whole, wanted), (dtype, length)
    assert torch.equal(part, result), (dtype, length)
    whole.zero_()[mine] = part
    all_gather_single(whole, whole[mine])  # in place, as FSDP does
    assert torch.equal(whole, wanted), (dtype, length)


def collectives() -> None:
    """All ranks' tensors there, those of all but one, and begun at odd places."""
    assert is_in_heap(in_heap(1))
    rooms: list[Room] = [
        in_heap,
        lambda length, dtype: (ordinary if RANK == 0 else in_heap)(length, dtype),
        lambda length, dtype: in_heap(length + 17, dtype)[17:],
    ]
    for dtype in (torch.float32, torch.bfloat16):
        for length in LENGTHS:
            parts = [numbers(rank, length * SIZE, dtype) for rank in range(SIZE)]
            for room in rooms:
                check_all(room, parts)
    say("fine")


def routes() -> None:
    for turn in range(ROUTE_TURNS):
        check_all(in_heap, [numbers(rank + SIZE * turn, 300_001 * SIZE, torch.float32) for rank in range(SIZE)])
    say("fine")


def ddp() -> None:
    """Its buckets are there, also those that it builds anew, and bring what other memory brings."""
    from torch.nn.parallel import DistributedDataParallel

    def trained() -> tuple[list[torch.Tensor], list[bool]]:
        torch.manual_seed(3)
        model = DistributedDataParallel(
            torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.ReLU(), torch.nn.Linear(500, 2)),
            gradient_as_bucket_view=True,
        )
        seen: list[bool] = []

        def look(group, bucket):
            seen.append(is_in_heap(bucket.buffer()))
            return group.allreduce([bucket.buffer().div_(SIZE)]).get_future().then(lambda got: got.value()[0])

        model.register_comm_hook(dist.group.WORLD, look)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            model(numbers(RANK + SIZE * step, 300, torch.float32)).square().sum().backward()
            optimizer.step()
        return [one.detach().clone() for one in model.parameters()], seen

    there, seen = trained()
    assert all(seen), seen
    os.environ["DDP_DISABLE_COMM_MEM"] = "1"
    elsewhere, seen = trained()
    assert not any(seen), seen
    assert all(map(torch.equal, there, elsewhere))
    say("fine")


def fsdp() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def trained(there: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.ReLU(), torch.nn.Linear(500, 4))
        fully_shard(model, mesh=init_device_mesh("cpu", (SIZE,)))
        model.set_allocate_memory_from_process_group_for_comm(there)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(numbers(RANK + SIZE * step, 300, torch.float32)).square().sum().backward()
            optimizer.step()
        return [one.full_tensor() for one in model.parameters()]

    assert all(map(torch.equal, trained(True), trained(False)))
    say("fine")


def forked() -> None:
    """What a DataLoader's worker writes to a tensor stays its own; it may drop and ask for more."""
    tensor = in_heap(100_000).fill_(1)
    child = os.fork()
    if not child:
        tensor.add_(1)
        fine = bool((tensor == 2).all())
        try:
            fine = fine and not is_in_heap(in_heap(10))
        finally:
            del tensor
            gc.collect()
            os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (tensor == 1).all()
    dist.all_reduce(tensor)
    assert (tensor == SIZE).all()
    say("fine")


def failed() -> None:
    """What is freed is used again, but where the others of a failed exchange may still write."""

    def places(count: int) -> set[int]:
        return {in_heap(50_000).data_ptr() for _ in range(count)}

    dist.all_reduce(in_heap(50_000))
    assert len(places(5)) == 1
    if RANK == 0:
        tensor = in_heap(50_000)
        place = tensor.data_ptr()
        try:
            dist.all_reduce(tensor)
        except RuntimeError:
            pass
        else:
            raise AssertionError("nobody else came")
        del tensor
        gc.collect()
        assert place not in places(5)
    say("fine")
    os._exit(0)


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


def given_up() -> None:
    """After a timeout the tensor is the caller's again, also when the other rank comes late."""
    tensor = in_heap(1_000_003).fill_(1)
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
    say("fine")
    os._exit(0)


def interrupted() -> None:
    """Nobody writes to the caller's tensor once abort() in the midst of an operation is over."""
    for turn in range(20):
        group = dist.new_group()
        tensor = in_heap(3_000_001).fill_(1)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        if RANK == 0:
            time.sleep(0.0005 * turn)
            group._get_backend(CPU).abort()
            error_of(work.wait)
            tensor.fill_(7)
            until = time.monotonic() + 0.1
            while time.monotonic() < until:
                assert (tensor == 7).all(), turn
        else:
            error_of(work.wait)
        dist.barrier()
    say("fine")


def shared_mappings() -> list[tuple[int, str]]:
    """Return the size in KiB and the kernel's flags of each mapping of shared memory."""
    mappings, size, is_shared = [], 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):  # the head of the next mapping
            is_shared = "orch-ccl" in line
        elif fields[0] == "Size:":
            size = int(fields[1])
        elif fields[0] == "VmFlags:" and is_shared:
            mappings.append((size, line))
    return mappings


def mapped() -> None:
    """Check that only used memory is mapped, and that no core dump includes it."""
    tensor = in_heap(1_000_003).fill_(1)
    dist.all_reduce(tensor)
    megabytes = 4 * SIZE + 64  # the tensors of all ranks, and the group's segment

    def check() -> bool:
        mappings = shared_mappings()
        small = sum(size for size, _ in mappings) < megabytes * 1024
        return bool(mappings) and small and all(" dd" in flags for _, flags in mappings)

    assert check(), shared_mappings()
    child = os.fork()
    if not child:
        os._exit(0 if check() else 1)
    assert os.waitpid(child, 0)[1] == 0
    say("fine")


def no_heap() -> None:
    assert not backend().supports_tensor_alloc(CPU)
    tensor = torch.ones(70_001)
    dist.all_reduce(tensor)
    assert (tensor == SIZE).all()
    say("fine")


def alone() -> None:
    """Without shared memory there is none to have."""
    assert not backend().supports_tensor_alloc(CPU)
    try:
        in_heap(10)
    except RuntimeError as error:
        say(str(error).splitlines()[0])


def main() -> None:
    how = sys.argv[1]
    warnings.filterwarnings("ignore", category=FutureWarning)
    if how == "no-heap":  # files as long as the group's memory can be made, none as long as a heap
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))
    init(3 if how in ("failed", "given-up") else 20)
    {
        "collectives": collectives,
        "routes": routes,
        "ddp": ddp,
        "fsdp": fsdp,
        "forked": forked,
        "failed": failed,
        "given-up": given_up,
        "interrupted": interrupted,
        "mapped": mapped,
        "no-heap": no_heap,
        "alone": alone,
    }[how]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
