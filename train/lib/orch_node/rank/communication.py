"""Count how much a rank has communicated: its collectives, sends and receives, and remote procedure calls."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from orch_node import preemption
from orch_node.rank import child_processes
from orch_node.rank.hooks import after_import, replace_function, wrap

# Methods of torch's ProcessGroup that its Python functions call, also those of older releases.
COLLECTIVES = (
    *("allgather", "allgather_coalesced", "_allgather_base", "allgather_into_tensor_coalesced", "all_gather_single"),
    *("all_gather_single_coalesced", "alltoall", "alltoall_base", "all_to_all_single"),
    *("barrier", "broadcast", "gather", "scatter"),
    *("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base"),
    *("reduce_scatter_tensor_coalesced", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
)
# Functions of torch.distributed._functional_collectives, also those of older releases.
FUNCTIONAL = (
    *("all_reduce", "all_reduce_coalesced", "all_gather_tensor", "all_gather_single", "all_to_all_single", "broadcast"),
    *("reduce_scatter_tensor", "reduce_scatter_single"),
)
LOCK = threading.Lock()  # held while groups are inspected and while they are destroyed
WORLD = ""  # the key of the default group, in which every rank takes part
MAX_GROUPS = 100  # the newest groups of a rank; the counts of more do not fit into an event


def replace_lock() -> None:
    """Make a new lock: a forked child has no thread that would release the parent's."""
    global LOCK
    LOCK = threading.Lock()


os.register_at_fork(after_in_child=replace_lock)


@dataclass
class Counts:
    """Operations that this process has begun.

    Attributes:
        point_to_point: sends and receives of all groups.
        remote_calls: calls of torch.distributed.rpc, made and executed.
        point_to_point_in_sequence: by group, the sends and receives that its backends number like
            collectives, as gloo does. Ranks may begin different numbers of them.
        destroyed: collectives of groups that were destroyed, by the key of the group.
        in_autograd: collectives that Python code has called during backward() or in the forward() of a Function, and
            functional ones with gradients.
        largest_exchange: elements of the largest tensor in a collective that Python code has called.
        largest_reduction: the same for collectives that reduce.
        largest_object: bytes of the largest pickled object in a collective.
        losses: scalars with a graph in collectives that Python code has called.
    """

    point_to_point: int = 0
    remote_calls: int = 0
    point_to_point_in_sequence: weakref.WeakKeyDictionary[Any, int] = field(default_factory=weakref.WeakKeyDictionary)
    destroyed: Counter[str] = field(default_factory=Counter)
    in_autograd: int = 0
    largest_exchange: int = 0
    largest_reduction: int = 0
    largest_object: int = 0
    losses: int = 0

    def reset_largest(self) -> None:
        self.largest_exchange = self.largest_reduction = self.largest_object = 0


COUNTS = Counts()


def begin(torch: ModuleType) -> None:
    """Count sends, receives and remote calls from now on, and keep the counts of destroyed groups.

    torch's functions for point-to-point operations, batched ones too, call these methods.
    """
    if not torch.distributed.is_available():
        return
    for name in ("send", "recv", "recv_anysource"):
        replace_function(torch.distributed.ProcessGroup, name, functools.partial(count_call, torch))
    measure_calls(torch, COLLECTIVES, torch.distributed.ProcessGroup)
    after_import("torch.distributed._functional_collectives", functools.partial(measure_calls, torch, FUNCTIONAL))
    count_remote_calls(torch)
    keep_counts(torch)


def count_call(torch: ModuleType, original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
    before = sequence_numbers(torch, group)
    result = original(group, *args, **kwargs)
    COUNTS.point_to_point += 1
    if in_sequence := sequence_numbers(torch, group) - before:
        counts = COUNTS.point_to_point_in_sequence
        counts[group] = counts.get(group, 0) + in_sequence
    return result


def measure_calls(torch: ModuleType, names: tuple[str, ...], owner: Any) -> None:
    """Record the largest tensor that Python code passes to a collective, and calls that autograd differentiates."""
    for name in filter(functools.partial(hasattr, owner), names):  # other releases of torch have some of them
        wrap(owner, name, functools.partial(measure, torch, os.getpid(), owner, "reduce" in name))


def measure(torch: ModuleType, process: int, owner: Any, reduces: bool, first: Any, *args: Any, **kwargs: Any) -> None:
    if getattr(owner, "_are_we_tracing", lambda: False)():  # as in torch.compile()
        return
    child_processes.check_process(process)
    graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)
    # Functional collectives, unlike methods of a group, have gradients.
    is_differentiated = getattr(first, "requires_grad", False) and torch.is_grad_enabled()
    COUNTS.in_autograd += graph_task() != -1 or is_in_function(torch) or is_differentiated
    tensors = (first, *args, *kwargs.values())
    items = (item for value in tensors for item in (value if isinstance(value, (list, tuple)) else (value,)))
    COUNTS.losses += any(torch.is_tensor(item) and item.numel() == 1 and item.grad_fn is not None for item in items)
    size = largest_size(torch, tensors)
    COUNTS.largest_exchange = max(COUNTS.largest_exchange, size)
    COUNTS.largest_object = max(COUNTS.largest_object, largest_size(torch, tensors, torch.uint8))
    if reduces:
        COUNTS.largest_reduction = max(COUNTS.largest_reduction, size)


def is_in_function(torch: ModuleType) -> bool:
    """Return whether the forward() of a torch.autograd.Function is running, which computes without gradients."""
    frame = None if torch.is_grad_enabled() else sys._getframe()
    while frame:
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount and code.co_varnames[0] == "ctx":
            return True
        frame = frame.f_back
    return False


def largest_size(torch: ModuleType, value: Any, dtype: Any = None) -> int:
    """Return the number of elements of the largest tensor in nested lists; a scalar, such as a loss, has none.

    Args:
        torch: the torch module.
        value: a tensor, or a list of them.
        dtype: of the tensors that count; by default all do.
    """
    if torch.is_tensor(value):
        return int(value.numel()) if value.dim() and dtype in (None, value.dtype) else 0
    if isinstance(value, (list, tuple)):
        return max((largest_size(torch, item, dtype) for item in value), default=0)
    return 0


def count_remote_calls(torch: ModuleType) -> None:
    """Count the calls that this rank makes, and the Python functions that it executes for others."""
    rpc = torch.distributed.rpc
    if not rpc.is_available():
        return

    def count(*_: Any, **__: Any) -> None:
        COUNTS.remote_calls += 1

    functions = [(rpc.api, name) for name in vars(rpc.api) if name.startswith(("_invoke_rpc_", "_invoke_remote_"))]
    for module, name in (*functions, (rpc.internal, "_run_function")):
        wrap(module, name, count)


def keep_counts(torch: ModuleType) -> None:
    """Add a group's collectives to the counts when it is destroyed.

    The lock makes sure that a group ends in the thread that destroys it: the heartbeat must not be
    the last to hold it.
    """

    def destroy_process_group(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        with LOCK:
            counts = live_collectives(torch)
            original(*args, **kwargs)
            counts.subtract(live_collectives(torch))
            COUNTS.destroyed.update(counts)

    distributed = torch.distributed
    replace_function(distributed, "destroy_process_group", destroy_process_group, distributed.distributed_c10d)


def operations(torch: ModuleType) -> int:
    """Return how many collectives, sends, receives and remote calls the script of this rank has begun."""
    of_script = sum(collectives(torch).values()) - preemption.AGREEMENT.collectives
    return of_script + COUNTS.point_to_point + COUNTS.remote_calls


def collectives(torch: ModuleType) -> Counter[str]:
    """Return how many collectives this rank has begun in each of its groups, by the key of the group."""
    with LOCK:
        counts = Counter(COUNTS.destroyed)
        counts.update(live_collectives(torch))
    return counts


def newest_groups(counts: Counter[str]) -> dict[str, int]:
    """Return the counts of the newest groups that the script has created."""
    return dict([item for item in counts.items() if item[0] != WORLD][-MAX_GROUPS:])


def live_collectives(torch: ModuleType) -> Counter[str]:
    counts: Counter[str] = Counter()
    for key, group in groups(torch):
        # A group whose backends count nothing has 0.
        counts[key] += sequence_numbers(torch, group) - COUNTS.point_to_point_in_sequence.get(group, 0)
    return counts


def groups(torch: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield each process group after its key: WORLD, or one of its name and ranks, which all members know."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    world = distributed_world(torch)
    for group in list(world.pg_map):
        if group is world.default_pg:
            yield WORLD, group
        else:
            identity = f"{world.pg_names.get(group)}: {sorted(world.pg_group_ranks.get(group, ()))}"
            yield f"{zlib.crc32(identity.encode()):08x}", group


def uses_rpc(torch: ModuleType) -> bool:
    """Return whether the script has started torch.distributed.rpc, of which not all calls are counted."""
    rpc = torch.distributed.rpc
    return bool(rpc.is_available() and rpc.api._is_current_rpc_agent_set())


def has_subgroup(torch: ModuleType) -> bool:
    """Return whether the script has created a process group of some of the ranks."""
    distributed = torch.distributed
    sizes = map(distributed.get_world_size, list(distributed_world(torch).pg_map))
    return any(0 < size < distributed.get_world_size() for size in sizes)


def distributed_world(torch: ModuleType) -> Any:
    """Return torch's record of all process groups; before torch 2.0 it consisted of variables of the module."""
    module = torch.distributed.distributed_c10d
    if hasattr(module, "_world"):
        return module._world
    records = {name: getattr(module, f"_{name}") for name in ("pg_map", "pg_names", "pg_group_ranks")}
    return SimpleNamespace(**records, default_pg=module.GroupMember.WORLD)


def sequence_numbers(torch: ModuleType, group: Any) -> int:
    total = 0
    for backend in backends(torch, group):
        with contextlib.suppress(Exception):  # a backend without sequence numbers may raise any type of error
            total += int(backend._get_sequence_number_for_group())
    return total


def pending(torch: ModuleType) -> Counter[str]:
    """Return the collectives of each group that wait on the GPU behind the one that runs or runs next.

    NCCL counts a collective when it is enqueued, although ranks wait in an earlier one. Sends and receives, which it
    counts separately, hide the position.

    Returns:
        The number of collectives by the key of the group.
    """
    counts: Counter[str] = Counter()
    status = {} if COUNTS.point_to_point else nccl_status(torch)
    with LOCK:
        for key, group in groups(torch) if status else ():
            for backend in backends(torch, group):
                completed = status.get(str(getattr(backend, "uid", "")), {}).get("last_completed_collective")
                if completed is not None:
                    enqueued = int(backend._get_sequence_number_for_group())
                    counts[key] += max(0, enqueued - max(0, int(completed)) - 1)
    return counts


def nccl_status(torch: ModuleType) -> dict[str, dict[str, str]]:
    """Return what torch's flight recorder knows of each group of NCCL, by its number; nothing without a recorder."""
    dump = getattr(getattr(torch._C, "_distributed_c10d", None), "_dump_nccl_trace_json", None)
    with contextlib.suppress(Exception):  # an older version, or a recorder that is switched off
        return dict(json.loads(dump(includeCollectives=False))["pg_status"]) if dump else {}
    return {}


def backends(torch: ModuleType, group: Any) -> list[Any]:
    """Return the backends of a group, each once: gloo may serve several kinds of devices."""
    unique: list[Any] = []
    for device in getattr(group, "_device_types", [torch.device("cpu")]):  # torch 2.0 has no list
        with contextlib.suppress(Exception):  # a member outside the group, or a group without a backend
            backend = group._get_backend(device)
            if all(backend is not listed for listed in unique):
                unique.append(backend)
    return unique
