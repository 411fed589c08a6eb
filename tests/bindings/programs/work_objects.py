"""Work: wait, wait(timeout), futures, exceptions, order, several groups; and what is refused."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from start import RANK, SIZE, init, say


def refused(kind: type[Exception], words: str, call) -> None:
    try:
        call()
    except kind as error:
        if words in str(error):
            return
        raise
    raise AssertionError(f"{words}: not refused")


init(30)
# Many in flight, waited for backwards; the future's value is the tensor itself.
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


# A callback may itself communicate.
def again(done):
    dist.all_reduce(done.value()[0])
    return done.value()[0]


assert dist.all_reduce(torch.ones(2), async_op=True).get_future().then(again).wait()[0] == SIZE**2

# wait(timeout) gives up waiting, not the operation.
late = torch.ones(10)
if RANK == 0:
    work = dist.all_reduce(late, async_op=True)
    refused(RuntimeError, "has not completed within the 200 ms", lambda: work.wait(timedelta(milliseconds=200)))
    assert not work.is_completed()
    work.wait()
else:
    time.sleep(1)
    dist.all_reduce(late)
assert late[0] == SIZE

# Two groups of the same ranks, used in opposite order by the two ranks.
first, second = dist.new_group(list(range(SIZE))), dist.new_group(list(range(SIZE)))
a, b = torch.ones(50_000), torch.ones(50_000)
order = [(first, a), (second, b)] if RANK % 2 else [(second, b), (first, a)]
for work in [dist.all_reduce(tensor, group=group, async_op=True) for group, tensor in order]:
    work.wait()
assert a[0] == b[0] == SIZE
alone = dist.new_group([RANK], use_local_synchronization=True)
dist.all_reduce(a, group=alone)
assert a[0] == SIZE

# Both send a large message before they receive.
peer = 1 - RANK
if RANK < 2:
    big, got = torch.full((2_000_000,), float(RANK)), torch.empty(2_000_000)
    sending = dist.isend(big, peer)
    dist.recv(got, peer)
    sending.wait()
    assert got[0] == peer

sparse = torch.eye(3).to_sparse()
refused(NotImplementedError, "sparse=False", lambda: dist.all_reduce(sparse))
for root in (-1, SIZE):
    at = dist.BroadcastOptions()
    at.rootRank = root
    words = f"no rank {root} in this group"
    refused(ValueError, words, partial(dist.group.WORLD.broadcast, [torch.ones(1)], at))
complex_tensor = torch.ones(2, dtype=torch.complex64)
refused((NotImplementedError, ValueError), "", lambda: dist.reduce(complex_tensor, 0, dist.ReduceOp.MAX))
half = torch.ones(2).to(torch.float8_e4m3fn)
refused(NotImplementedError, "convert them to float32", lambda: dist.all_reduce(half))
refused(NotImplementedError, "view the tensor", lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND))
# A call that was refused never reached the network: the group still works.
check = torch.ones(1)
dist.all_reduce(check)
assert check.item() == SIZE
dist.destroy_process_group()
say("fine")
