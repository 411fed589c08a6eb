"""Test one operation after the other with one kind of failure, in the same ranks.

    kinds.py KIND sync|async

Each operation has a separate group, because a failed group stays broken. A rank prints "right" for
each operation that behaves as expected and raises an exception for the first that does not.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from start import RANK, SIZE, error_of, init, print_line

KIND, ASYNC = sys.argv[1], sys.argv[2] == "async"
SHORT = timedelta(seconds=1)
LONG = timedelta(seconds=60)
PEER = 1 - RANK
Group = dist.ProcessGroup
# begin(group, elements per tensor, root) starts an operation and returns its Work.
Begin = Callable[[Group, int, int], dist.Work]


def filled(size: int) -> torch.Tensor:
    return torch.ones(size)


def parts(size: int) -> list[torch.Tensor]:
    return [filled(size) for _ in range(SIZE)]


def at_root(root: int, size: int) -> list[list[torch.Tensor]]:
    return [parts(size)] if root == RANK else []


def rooted(kind: type, root: int):
    options = kind()
    options.rootRank = root
    return options


# These are methods of the group, because torch.distributed's functions check the root first.
OPERATIONS: dict[str, Begin] = {
    "all_reduce": lambda group, size, root: group.allreduce([filled(size)]),
    "all_reduce_coalesced": lambda group, size, root: group.allreduce_coalesced([filled(size)]),
    "reduce": lambda group, size, root: group.reduce([filled(size)], rooted(dist.ReduceOptions, root)),
    "reduce_scatter": lambda group, size, root: group.reduce_scatter([filled(size)], [parts(size)]),
    "reduce_scatter_single": lambda group, size, root: group._reduce_scatter_base(filled(size), filled(size * SIZE)),
    "broadcast": lambda group, size, root: group.broadcast([filled(size)], rooted(dist.BroadcastOptions, root)),
    "all_gather": lambda group, size, root: group.allgather([parts(size)], [filled(size)]),
    "all_gather_single": lambda group, size, root: group._allgather_base(filled(size * SIZE), filled(size)),
    "gather": lambda group, size, root: group.gather(
        at_root(root, size), [filled(size)], rooted(dist.GatherOptions, root)
    ),
    "scatter": lambda group, size, root: group.scatter(
        [filled(size)], at_root(root, size), rooted(dist.ScatterOptions, root)
    ),
    "all_to_all": lambda group, size, root: group.alltoall(parts(size), parts(size)),
    "all_to_all_single": lambda group, size, root: group.alltoall_base(
        filled(size * SIZE), filled(size * SIZE), [], []
    ),
    "barrier": lambda group, size, root: group.barrier(),
    "send_recv": lambda group, size, root: (
        group.send([filled(size)], root, 3) if root != RANK else group.recv([filled(size)], PEER, 3)
    ),
    "recv_any": lambda group, size, root: (
        group.send([filled(size)], root, 3) if root != RANK else group.recv_anysource([filled(size)], 3)
    ),
}
FROM_ROOT = ("broadcast", "scatter")  # whose root does not need to wait


def wait_for(work: dist.Work) -> None:
    """Wait as a caller with async_op=True or without it does."""
    if ASYNC:
        while not work.is_completed():
            time.sleep(0.001)
    work.wait()


def raises(message: str, callback: Callable[[], object]) -> None:
    start_time = time.monotonic()
    error = error_of(callback)
    assert message in error, f"not {message!r}: {error}"
    assert time.monotonic() - start_time < 30, f"only after {time.monotonic() - start_time:.1f} s"


def run_without_peer(message: str, end: Callable[[], None], before: Callable[[], None] = lambda: None) -> None:
    """Start all operations at once, each in a separate group, while the other rank takes part in none."""
    groups = {name: dist.new_group(timeout=LONG) for name in OPERATIONS}
    dist.barrier()
    if RANK == 1:
        return end()
    before()
    for group in groups.values():
        seconds = SHORT if KIND == "timeout" else LONG
        group._get_backend(torch.device("cpu"))._set_default_timeout(seconds)
    works = {name: OPERATIONS[name](group, 10, int(name in FROM_ROOT)) for name, group in groups.items()}
    for name, work in works.items():
        raises(message, lambda work=work: wait_for(work))
        print_line("right:", name)


def timeout() -> None:
    run_without_peer("timed out after 1000 ms", lambda: None)


def peer_dead() -> None:
    run_without_peer("rank 1 (", lambda: os._exit(0))


def peer_gone() -> None:
    """Start the operations after the process of the other rank has ended, to which no group is connected then."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"pid/{RANK}", str(os.getpid()))
    peer = int(store.get(f"pid/{PEER}"))
    run_without_peer("rank 1 (", lambda: os._exit(0), before=lambda: wait_for_end(peer))


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 30
    status = Path(f"/proc/{pid}/status")
    while status.exists() and "\nState:\tZ" not in status.read_text():
        assert time.monotonic() < deadline, f"process {pid} has not ended"
        time.sleep(0.05)


def wrong_size(begin: Begin, name: str) -> None:
    """Check different sizes. A message contains its size; the others need ORCH_CCL_CHECK=1."""
    group = dist.new_group(timeout=timedelta(seconds=60))  # no operation reaches this timeout
    if name == "barrier":
        return
    if name in ("send_recv", "recv_any"):
        if RANK == 0:
            raises("sent 44 bytes, but this recv expects 40", lambda: wait_for(begin(group, 10 + RANK, 0)))
        else:
            begin(group, 10 + RANK, 0).wait()
    else:
        raises(f"rank {PEER} (", lambda: wait_for(begin(group, 10 + RANK, 0)))


def crosswise(begin: Begin, name: str) -> None:
    """Start the operations of two groups in opposite orders on the two ranks."""
    first, second = dist.new_group(timeout=LONG), dist.new_group(timeout=LONG)
    works = []
    for group in (first, second) if RANK == 0 else (second, first):
        works += [begin(group, 50_000, 0), group.allreduce([filled(3)]), group.barrier()]
    for work in reversed(works):
        wait_for(work)
    if not ASYNC:  # one rank waits for an operation that the other has only started
        group = (first, second)[RANK]
        background = begin(group, 10, 0)
        second_group = (second, first)[RANK]
        pending = begin(second_group, 10, 0)
        wait_for(background)
        wait_for(pending)


def callback(begin: Begin, name: str) -> None:
    """Check that a callback, also a nested one, may start an operation on its group and wait for it."""
    group = dist.new_group(timeout=LONG)

    def repeat(depth: int):
        def callback(_: object) -> int:
            future = begin(group, 10, 0).get_future()
            if depth > 1:
                return depth + future.then(repeat(depth - 1)).wait()
            future.wait()
            return depth

        return callback

    work = begin(group, 10, 0)
    then = work.get_future().then(repeat(3))
    if not ASYNC:
        work.wait()
    assert then.wait() == 6


CONCURRENT_TESTS = {"timeout": timeout, "peer-dead": peer_dead, "peer-gone": peer_gone}
SEQUENTIAL_TESTS = {"wrong-size": wrong_size, "crosswise": crosswise, "callback": callback}

init(60)
if KIND in CONCURRENT_TESTS:
    CONCURRENT_TESTS[KIND]()
else:
    for name, begin in OPERATIONS.items():
        SEQUENTIAL_TESTS[KIND](begin, name)
        print_line("right:", name)
if KIND in ("peer-dead", "peer-gone"):
    print_line("fine")
    os._exit(0)
dist.barrier()
print_line("fine")
