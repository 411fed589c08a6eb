"""Find which weights the parallelism of PyTorch keeps equal on which ranks, and which it leaves to each rank."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from orch_node.rank import communication
from orch_node.rank import weight_inspection as weights

# DDP hooks of these packages leave equal gradients on all ranks, apart from LOCAL_HOOKS.
HOOK_PACKAGES = ("torch.", "orch_training.")
LOCAL_HOOKS = {"post_localSGD_hook", "noop_hook"}


def local_replicas(torch: ModuleType, held: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the local parts of weights that several ranks hold, as with HSDP, by a name of these ranks."""
    replicas: dict[str, list[Any]] = {}
    for ranks, weight in (*dtensor_replicas(torch, held), *fsdp_replicas(torch)):
        replicas.setdefault(f"replicas-{zlib.crc32(repr(ranks).encode()):08x}", []).append(weight)
    return {name: part for name, part in replicas.items() if all(weights.is_readable(torch, weight) for weight in part)}


def dtensor_replicas(torch: ModuleType, held: Sequence[Any]) -> Iterator[tuple[list[int], Any]]:
    """Yield the ranks that hold the same part of a DTensor as this one, and that part."""
    for weight in held:
        is_replicated = [placement.is_replicate() for placement in getattr(weight, "placements", ())]
        position = weight.device_mesh.get_coordinate() if any(is_replicated) else None
        if position:  # None on a rank outside of the mesh
            index = tuple(slice(None) if each else number for each, number in zip(is_replicated, position))
            with torch.no_grad():  # to_local() would return a new tensor that has gradients
                yield weight.device_mesh.mesh[index].tolist(), weight.to_local()


def fsdp_replicas(torch: ModuleType) -> Iterator[tuple[list[int], Any]]:
    """Yield the ranks that hold the same part of the weights of an FSDP1 module as this one, and that part."""
    for module in fsdp_modules():
        group = getattr(module, "_inter_node_pg", None)  # of HYBRID_SHARD
        if group is None and module.sharding_strategy.name == "NO_SHARD":
            group = module.process_group
        weight = getattr(getattr(module, "_handle", None), "flat_param", None)  # torch 2.0 has no _handle
        if group is not None and weight is not None:
            yield torch.distributed.get_process_group_ranks(group), weight._local_shard


def data_parallel_modules(torch: ModuleType) -> list[Any]:
    """Return each DistributedDataParallel of this process."""
    return weights.objects_of(torch.nn.parallel.DistributedDataParallel)


def ddp_weights(torch: ModuleType) -> tuple[dict[int, tuple[str, int]], set[int]]:
    """Return the ids of all weights that a DistributedDataParallel keeps equal on all ranks, or leaves out.

    Those of the first kind are returned with their names and positions.
    """
    shared: dict[int, tuple[str, int]] = {}
    ignored: set[int] = set()
    for module in data_parallel_modules(torch):
        for name, weight in module.module.named_parameters():
            if name in module.parameters_to_ignore:
                ignored.add(id(weight))
            elif weight.requires_grad and keeps_equal(torch, module):
                shared[id(weight)] = name, len(shared)
    return shared, ignored


def shared_weights(torch: ModuleType) -> set[int]:
    """Return the ids of all weights that a DistributedDataParallel keeps equal on all ranks."""
    return set(ddp_weights(torch)[0])


def keeps_equal(torch: ModuleType, module: Any) -> bool:
    """Return whether a DistributedDataParallel averages gradients over all ranks at present."""
    hooks = [hook for hook, _ in getattr(module, "_comm_hooks", ())]
    return (
        bool(getattr(module, "require_backward_grad_sync", False))
        and bool(getattr(module, "require_forward_param_sync", False))  # False after a forward() in no_sync()
        and torch.distributed.get_world_size(module.process_group) == torch.distributed.get_world_size()
        and all(f"{getattr(hook, '__module__', '')}.".startswith(HOOK_PACKAGES) for hook in hooks)
        and LOCAL_HOOKS.isdisjoint(getattr(hook, "__name__", "") for hook in hooks)
    )


def fsdp_modules(class_name: str = "FullyShardedDataParallel") -> list[Any]:
    """Return each module of a class of FSDP: of FSDP1, whose weights may look like ordinary ones, or of FSDP2."""
    return weights.objects_of(getattr(sys.modules.get("torch.distributed.fsdp"), class_name, ()))


def computes_together(torch: ModuleType) -> bool:
    """Return whether the ranks seem to compute one model together, each with a part of its weights."""
    counts = communication.COUNTS
    sends_parts = counts.point_to_point or counts.remote_calls or counts.in_autograd
    return bool(sends_parts or communication.has_subgroup(torch) or communication.uses_rpc(torch))
