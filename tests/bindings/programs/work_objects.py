"""Check Work objects, futures, errors, the order of operations, a group of one rank, unsupported calls."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from start import RANK, SIZE, error_of, init, print_line


def expect_error(kinds: str | tuple[str, ...], message: str, call) -> None:
    error = error_of(call)
    assert error.startswith(kinds), error
    assert message in error, error


init(30)
# Many pending operations, waited for in reverse order; the value of the future is the tensor.
tensors = [torch.full((1000,), float(RANK + i)) for i in range(20)]
works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
for i in reversed(range(20)):
    works[i].wait()
    assert works[i].is_completed()
    assert works[i].is_success()
    assert tensors[i][0] == sum(rank + i for rank in range(SIZE))
numbers = [work._get_sequence_number() if hasattr(work, "_get_sequence_number") else 0 for work in works]
assert numbers == sorted(numbers)
future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
assert future.then(lambda done: done.value()[0] * 2).wait().tolist() == [2.0 * SIZE] * 3

# wait(timeout) does not cancel the operation.
late = torch.ones(10)
if RANK == 0:
    work = dist.all_reduce(late, async_op=True)
    expect_error("", "has not completed within the 200 ms", lambda: work.wait(timedelta(milliseconds=200)))
    assert not work.is_completed()
    work.wait()
else:
    time.sleep(1)
    dist.all_reduce(late)
assert late[0] == SIZE

own_tensor = torch.ones(10)
dist.all_reduce(own_tensor, group=dist.new_group([RANK], use_local_synchronization=True))
assert own_tensor[0] == 1

# Both ranks send a large message before they receive.
peer = 1 - RANK
if RANK < 2:
    big, received = torch.full((2_000_000,), float(RANK)), torch.empty(2_000_000)
    sending = dist.isend(big, peer)
    dist.recv(received, peer)
    sending.wait()
    assert received[0] == peer

sparse = torch.eye(3).to_sparse()
expect_error("NotImplementedError", "sparse=False", lambda: dist.all_reduce(sparse))
complex_tensor = torch.ones(2, dtype=torch.complex64)
expect_error(("NotImplementedError", "ValueError"), "", lambda: dist.reduce(complex_tensor, 0, dist.ReduceOp.MAX))
half = torch.ones(2).to(torch.float8_e4m3fn)
expect_error("NotImplementedError", "convert them to float32", lambda: dist.all_reduce(half))
expect_error("NotImplementedError", "view the tensor", lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND))
# A rejected call never reaches the network, so the group still works.
check = torch.ones(1)
dist.all_reduce(check)
assert check.item() == SIZE
dist.destroy_process_group()
print_line("fine")
