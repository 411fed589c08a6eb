"""The process group of a rank: made from the layout, handed to the script, and used by it.

It is made before any Hugging Face code runs, because newer transformers and accelerate refuse the
name `ccl`; they use a group that already exists as it is.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import inspect
import itertools
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from orch_node.bound_store import bind_stores
from orch_node.protocol.layout import Placement, RunLayout
from orch_node.rank import communication, frameworks
from orch_node.rank.checks import RankError


def join(torch: ModuleType, layout: RunLayout, placement: Placement, planned: Mapping[str, str]) -> None:
    """Import what the backend needs and make the default process group, also of one rank: a script
    may ask for its rank, or reduce, however many there are. A torch without distributed has none.

    `planned`: variables that orch has set."""
    if layout.backend_module:
        module = importlib.import_module(layout.backend_module)
        if hasattr(module, "expect_settings"):  # our bindings: no warning of what we have set
            module.expect_settings(planned)
    distributed = torch.distributed
    if layout.world_size == 1 and not distributed.is_available():
        return
    check_backend(torch, layout.backend)
    # Also for a script that makes its groups anew.
    bind_stores(importlib.import_module("torch.distributed.rendezvous"))
    communication.begin(torch)
    if layout.backend == "gloo":
        # A rank that ends at once would break the connections that others still make.
        os.environ.setdefault("TORCH_DIST_INIT_BARRIER", "1")
    timeout = planned_timeout(layout)
    distributed.init_process_group(layout.backend, init_method="env://", timeout=timeout)
    adopt_group(distributed, layout)
    frameworks.use_cpu_without_accelerator(torch)
    frameworks.hide_notes_about_gpus(torch)
    frameworks.adopt_timeouts(functools.partial(set_timeout, distributed))
    if layout.world_size > 1:
        forbid_training_alone(torch, layout, placement)


def check_backend(torch: ModuleType, backend: str) -> None:
    """Of those that torch may have been built without: gloo, mpi, nccl, ucc, xccl."""
    there = getattr(torch.distributed, f"is_{backend}_available", None)
    if there is not None and not there():
        raise RankError(
            f"torch {torch.__version__} was built without the backend {backend}. Take --backend "
            "ccl or gloo, or a torch that has it."
        )


def adopt_group(distributed: ModuleType, layout: RunLayout) -> None:
    """Give a script's own init_process_group() the group that exists, with a note in the log.

    The script may destroy that group; a new one has the run's backend too. It meets at the store of
    the first one: a rank could connect to the server of the old store while that is shut down.
    """
    original = distributed.init_process_group
    signature = inspect.signature(original)
    store = distributed.distributed_c10d._get_default_store()
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    groups = itertools.count(1)

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        requested = signature.bind(*args, **kwargs).arguments
        exists = distributed.is_initialized()
        print(
            f"orch: the script asks for a process group ({requested.get('backend') or 'default'}); "
            f"it gets {'the' if exists else 'a new'} one on {layout.backend}"
            f"{' that orch made' if exists else ''}.",
            file=sys.stderr,
        )
        if not exists:
            timeout = requested.get("timeout") or planned_timeout(layout)
            options = {**requested, "backend": layout.backend, "timeout": timeout}
            has_all_ranks = requested.get("world_size", -1) in (-1, None, world_size)
            if has_all_ranks and requested.get("store") is None:
                prefix_store = distributed.PrefixStore(f"orch/group-{next(groups)}", store)
                options |= {"store": prefix_store, "rank": rank, "world_size": world_size}
                options.pop("init_method", None)
            original(**options)
            return
        check_requested(distributed, requested)
        if requested.get("timeout") is not None:
            set_timeout(distributed, requested["timeout"])

    for module in (distributed, distributed.distributed_c10d):
        vars(module)["init_process_group"] = init_process_group


def planned_timeout(layout: RunLayout) -> datetime.timedelta:
    return datetime.timedelta(seconds=layout.timeout_seconds)


def check_requested(distributed: ModuleType, requested: Mapping[str, Any]) -> None:
    """Raise ValueError if the script asks for another world size or rank than the run's."""
    world_size, rank = requested.get("world_size", -1), requested.get("rank", -1)
    if world_size not in (-1, None, distributed.get_world_size()):
        raise ValueError(
            f"the script asks for world_size={world_size}, this run has {distributed.get_world_size()} ranks."
        )
    if rank not in (-1, None, distributed.get_rank()):
        raise ValueError(f"the script asks for rank={rank} on rank {distributed.get_rank()}.")


def set_timeout(distributed: ModuleType, timeout: datetime.timedelta) -> None:
    """Give the default group, if there is one, the timeout that the script asks for."""
    if not distributed.is_initialized():  # the script has destroyed it, and asks for a new one
        return
    torch = importlib.import_module("torch")
    group = distributed.distributed_c10d._get_default_group()
    for backend in communication.backends(torch, group):
        if not hasattr(backend, "_set_default_timeout"):
            print(
                "warning: this backend's timeout cannot be changed; the script asks for "
                f"{timeout.total_seconds():g} s.",
                file=sys.stderr,
            )
            continue
        backend._set_default_timeout(timeout)
    distributed.distributed_c10d._get_default_store().set_timeout(timeout)


def forbid_training_alone(torch: ModuleType, layout: RunLayout, placement: Placement) -> None:
    """Stop a script at its first optimizer step if a framework in it has other numbers of ranks
    than the run, or if the ranks have not communicated at all: then each trains alone."""
    at_start = communication.operations(torch)

    steps: list[None] = []

    def check(*_: Any) -> None:
        if steps:  # a hook that removed itself here would break torch's loop over all of them
            return
        steps.append(None)
        frameworks.check_numbers(layout, placement)
        silent = communication.operations(torch) == at_start
        if silent and torch.distributed.is_initialized() and not other_groups(torch):
            raise RankError(
                "the script trains alone on every rank: it made an optimizer step before the ranks "
                f"had communicated. {frameworks.advice(layout, placement)}; or run it with "
                "--nodes 1 --ppn 1."
            )

    optimizer = importlib.import_module("torch.optim.optimizer")
    optimizer.register_optimizer_step_pre_hook(check)


def other_groups(torch: ModuleType) -> bool:
    """Return whether the script made process groups, whose backends may not count."""
    return len(torch.distributed.distributed_c10d._world.pg_map) > 1
