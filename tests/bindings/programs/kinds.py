"""One kind of trouble, met by one operation after the other in the same ranks.

    kinds.py KIND sync|async OPERATION...

Each operation gets a group of its own, because a group that failed stays failed. A rank says
"right" for each that behaved, and raises for the first that did not.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from start import RANK, SIZE, init, say

KIND, ASYNC, CHOSEN = sys.argv[1], sys.argv[2] == "async", sys.argv[3:]
SHORT = timedelta(seconds=1)
LONG = timedelta(seconds=60)
OTHER = 1 - RANK
Group = dist.ProcessGroup
# begins the operation on tensors of so many elements, with this root: -> Work
Begin = Callable[[Group, int, int], dist.Work]


def ones(size: int) -> torch.Tensor:
    return torch.ones(size)


def parts(size: int) -> list[torch.Tensor]:
    return [ones(size) for _ in range(SIZE)]


def at_root(root: int, size: int) -> list[list[torch.Tensor]]:
    return [parts(size)] if root == RANK else []


def rooted(kind: type, root: int):
    options = kind()
    options.rootRank = root
    return options


# On the group itself: torch.distributed's functions check a root before the backend sees it.
OPERATIONS: dict[str, Begin] = {
    "all_reduce": lambda group, size, root: group.allreduce([ones(size)]),
    "all_reduce_coalesced": lambda group, size, root: group.allreduce_coalesced([ones(size)]),
    "reduce": lambda group, size, root: group.reduce([ones(size)], rooted(dist.ReduceOptions, root)),
    "reduce_scatter": lambda group, size, root: group.reduce_scatter([ones(size)], [parts(size)]),
    "reduce_scatter_single": lambda group, size, root: group._reduce_scatter_base(ones(size), ones(size * SIZE)),
    "broadcast": lambda group, size, root: group.broadcast([ones(size)], rooted(dist.BroadcastOptions, root)),
    "all_gather": lambda group, size, root: group.allgather([parts(size)], [ones(size)]),
    "all_gather_single": lambda group, size, root: group._allgather_base(ones(size * SIZE), ones(size)),
    "gather": lambda group, size, root: group.gather(
        at_root(root, size), [ones(size)], rooted(dist.GatherOptions, root)
    ),
    "scatter": lambda group, size, root: group.scatter(
        [ones(size)], at_root(root, size), rooted(dist.ScatterOptions, root)
    ),
    "all_to_all": lambda group, size, root: group.alltoall(parts(size), parts(size)),
    "all_to_all_single": lambda group, size, root: group.alltoall_base(ones(size * SIZE), ones(size * SIZE), [], []),
    "barrier": lambda group, size, root: group.barrier(),
    "send_recv": lambda group, size, root: (
        group.send([ones(size)], root, 3) if root != RANK else group.recv([ones(size)], OTHER, 3)
    ),
    "recv_any": lambda group, size, root: (
        group.send([ones(size)], root, 3) if root != RANK else group.recv_anysource([ones(size)], 3)
    ),
}
ROOTED = ("reduce", "broadcast", "gather", "scatter", "send_recv", "recv_any")
FROM_ROOT = ("broadcast", "scatter")  # where the root itself need not wait
UNSIZED = ("barrier",)


def done(work: dist.Work) -> None:
    """As a caller would wait that began it with async_op=True, or without."""
    if ASYNC:
        while not work.is_completed():
            time.sleep(0.001)
    work.wait()


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (dist.DistBackendError, ValueError, RuntimeError) as error:
        return str(error)
    return "no error"


def raises(words: str, call: Callable[[], object], within: float = 30) -> None:
    begun = time.monotonic()
    error = error_of(call)
    assert words in error, f"not {words!r}: {error}"
    assert time.monotonic() - begun < within, f"only after {time.monotonic() - begun:.1f} s"


def alone(words: str, end: Callable[[], None]) -> None:
    """All operations at once, each in a group of its own, while the other rank does not come."""
    groups = {name: dist.new_group(timeout=LONG) for name in CHOSEN or OPERATIONS}
    dist.barrier()
    if RANK == 1:
        return end()
    for group in groups.values():
        seconds = SHORT if KIND == "timeout" else LONG
        group._get_backend(torch.device("cpu"))._set_default_timeout(seconds)
    works = {name: OPERATIONS[name](group, 10, int(name in FROM_ROOT)) for name, group in groups.items()}
    for name, work in works.items():
        raises(words, lambda work=work: done(work))
        say("right:", name)


def timeout() -> None:
    alone("timed out after 1000 ms", lambda: None)


def peer_dead() -> None:
    alone("rank 1 (", lambda: os._exit(0))


def wrong_root(begin: Begin, name: str) -> None:
    for root in (-1, SIZE):
        if name in ROOTED and name not in ("send_recv", "recv_any"):
            raises(f"there is no rank {root}", lambda root=root: begin(dist.group.WORLD, 10, root))
        elif name == "send_recv":
            raises("there is no rank", lambda root=root: dist.group.WORLD.send([ones(1)], root, 0))
            raises("there is no rank", lambda root=root: dist.group.WORLD.recv([ones(1)], root, 0))


def wrong_size(begin: Begin, name: str) -> None:
    """With ORCH_CCL_CHECK=1; what is sent tells its size always, and its receiver complains."""
    group = dist.new_group(timeout=timedelta(seconds=60))  # nothing here waits for its end
    if name in UNSIZED:
        return
    if name in ("send_recv", "recv_any"):
        if RANK == 0:
            raises("sent 44 bytes, but this recv expects 40", lambda: done(begin(group, 10 + RANK, 0)))
        else:
            begin(group, 10 + RANK, 0).wait()
    else:
        raises(f"rank {OTHER} (", lambda: done(begin(group, 10 + RANK, 0)))


def crosswise(begin: Begin, name: str) -> None:
    """Each rank begins what belongs to another group first, and waits for it last."""
    first, second = dist.new_group(timeout=LONG), dist.new_group(timeout=LONG)
    works = []
    for group in (first, second) if RANK == 0 else (second, first):
        works += [begin(group, 50_000, 0), group.allreduce([ones(3)]), group.barrier()]
    for work in reversed(works):
        done(work)
    if not ASYNC:  # one rank waits where the other has only begun
        group = (first, second)[RANK]
        background = begin(group, 10, 0)
        other = (second, first)[RANK]
        pending = begin(other, 10, 0)
        done(background)
        done(pending)


def callback(begin: Begin, name: str) -> None:
    """A callback communicates and waits for it, on the same group, and so does one of its own."""
    group = dist.new_group(timeout=LONG)

    def again(depth: int):
        def call(_: object) -> int:
            future = begin(group, 10, 0).get_future()
            if depth > 1:
                return depth + future.then(again(depth - 1)).wait()
            future.wait()
            return depth

        return call

    work = begin(group, 10, 0)
    then = work.get_future().then(again(3))
    if not ASYNC:
        work.wait()
    assert then.wait() == 6


AT_ONCE = {"timeout": timeout, "peer-dead": peer_dead}
ONE_BY_ONE = {"wrong-root": wrong_root, "wrong-size": wrong_size, "crosswise": crosswise, "callback": callback}

init(60)
if KIND in AT_ONCE:
    AT_ONCE[KIND]()
else:
    for name in CHOSEN or OPERATIONS:
        ONE_BY_ONE[KIND](OPERATIONS[name], name)
        say("right:", name)
if KIND == "peer-dead":
    say("fine")
    os._exit(0)
dist.barrier()
say("fine")
