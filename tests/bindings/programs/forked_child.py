"""Use, drop and query all objects of a parent in forked children, one for each action.

Each child must end with exit code 0, and the parent must be able to communicate as before.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from start import RANK, SIZE, error_of, init, print_line, run_in_child

LENGTH = 50_000
CPU = torch.device("cpu")


class Parent:
    """The groups, tensors, finished and pending operations of a rank that forks."""

    def __init__(self) -> None:
        self.group = dist.new_group()
        self.backend = self.group._get_backend(CPU)
        self.finished = dist.all_reduce(torch.ones(10), async_op=True)
        self.finished.wait()
        self.tensor = torch.ones(LENGTH)
        if self.backend.supports_tensor_alloc(CPU):
            self.tensor = self.backend.allocate_tensor(LENGTH, dtype=torch.float32, device=CPU)
            self.tensor.fill_(1)
        # The other rank starts it later, so it is pending when the child is forked.
        if RANK == 0:
            self.pending = [
                dist.all_reduce(self.tensor, group=self.group, async_op=True),
                dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(10), 1)])[0],
            ]


def destroy(parent: Parent) -> None:
    dist.destroy_process_group()


def drop(parent: Parent) -> None:
    """Drop everything; memory that was mapped later must not be unmapped."""
    dist.destroy_process_group()
    tensors = [torch.ones(1_000_000) for _ in range(20)]
    parent.__dict__.clear()
    gc.collect()
    assert all((tensor == 1).all() for tensor in tensors)


def abort(parent: Parent) -> None:
    parent.backend.abort()
    dist.distributed_c10d._abort_process_group()


def query(parent: Parent) -> None:
    """Call the methods that do not use the network, and change the tensor, of which the child has a copy."""
    parent.tensor.add_(1)
    parent.backend._set_default_timeout(timedelta(seconds=5))
    assert parent.backend.rank() == RANK
    assert parent.backend.size() == SIZE
    parent.backend.supports_tensor_alloc(CPU)
    for work in [parent.finished, *getattr(parent, "pending", [])]:
        work.is_completed()
        work.result()
        work.get_future()
    parent.backend.shutdown()


def communicate(parent: Parent) -> None:
    """Check that every operation raises an error at once."""
    tensor, group = torch.ones(10), parent.group
    parts = [torch.ones(10) for _ in range(SIZE)]
    calls: list[Callable[[], object]] = [
        lambda: group.allreduce([tensor]),
        lambda: group.alltoall(parts, parts),
        lambda: group.barrier(),
        lambda: group.send([tensor], 1 - RANK, 0),
        lambda: group.recv([tensor], 1 - RANK, 0),
        lambda: dist.new_group(),
        *[work.wait for work in getattr(parent, "pending", [])],
    ]
    for call in calls:
        error = error_of(call)
        assert "forked" in error, error


init(60)
parent = Parent()
for action in (destroy, drop, abort, query, communicate):
    code = run_in_child(lambda action=action: action(parent))
    if code != 0:
        print_line("the child of", action.__name__, "ended with", code)
        os._exit(1)
if RANK == 1:
    dist.all_reduce(parent.tensor, group=parent.group)
    dist.send(torch.full((10,), 3.0), 0)
else:
    for work in parent.pending:
        work.wait()
assert (parent.tensor == SIZE).all()
dist.barrier()
dist.destroy_process_group()
print_line("fine")
