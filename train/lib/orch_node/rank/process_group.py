"""The process group of a rank: made from the layout, handed to the script, and used by it.

It is made before any Hugging Face code runs, because newer transformers and accelerate refuse the
name `ccl`; they use a group that already exists as it is.
"""

from __future__ import annotations

import datetime
import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from orch_node.bound_store import bind_stores
from orch_node.protocol.layout import RunLayout
from orch_node.rank.checks import RankError


def join(torch: ModuleType, layout: RunLayout, planned: Mapping[str, str]) -> None:
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
    timeout = datetime.timedelta(seconds=layout.timeout_seconds)
    distributed.init_process_group(layout.backend, init_method="env://", timeout=timeout)
    adopt_group(distributed, layout.backend)
    if layout.world_size > 1:
        forbid_training_alone(torch)


def check_backend(torch: ModuleType, backend: str) -> None:
    """Of those that torch may have been built without: gloo, mpi, nccl, ucc, xccl."""
    there = getattr(torch.distributed, f"is_{backend}_available", None)
    if there is not None and not there():
        raise RankError(
            f"torch {torch.__version__} was built without the backend {backend}. Take --backend "
            "ccl or gloo, or a torch that has it."
        )


def adopt_group(distributed: ModuleType, backend: str) -> None:
    """A script's own init_process_group() gets the group that exists, and a note in the log."""
    original = distributed.init_process_group

    def init_process_group(requested: str | None = None, *args: Any, **kwargs: Any) -> None:
        if not distributed.is_initialized():
            original(requested, *args, **kwargs)
            return
        world_size, rank = kwargs.get("world_size", -1), kwargs.get("rank", -1)
        if world_size not in (-1, distributed.get_world_size()):
            raise ValueError(
                f"the script asks for world_size={world_size}, this run has "
                f"{distributed.get_world_size()} ranks."
            )
        if rank not in (-1, distributed.get_rank()):
            raise ValueError(f"the script asks for rank={rank} on rank {distributed.get_rank()}.")
        print(
            f"orch: the script asks for a process group ({requested or 'default'}); it gets the "
            f"one on {backend} that orch made.",
            file=sys.stderr,
        )

    for module in (distributed, distributed.distributed_c10d):
        vars(module)["init_process_group"] = init_process_group


def forbid_training_alone(torch: ModuleType) -> None:
    """Stop a script whose optimizer steps although no collective ever ran: each rank is alone."""
    group = torch.distributed.distributed_c10d._get_default_group()
    operations = group._get_backend(torch.device("cpu"))._get_sequence_number_for_group
    at_start = operations()

    steps: list[None] = []

    def check(*_: Any) -> None:
        if steps:  # a hook that removed itself here would break torch's loop over all of them
            return
        steps.append(None)
        alone = operations() == at_start
        if alone and torch.distributed.is_initialized() and not other_groups(torch):
            raise RankError(
                "the script trains alone on every rank: it made an optimizer step before any "
                "collective operation. Wrap the model in DistributedDataParallel, use Trainer or "
                "Accelerator, or run it with --nodes 1 --ppn 1."
            )

    optimizer = importlib.import_module("torch.optim.optimizer")
    optimizer.register_optimizer_step_pre_hook(check)


def other_groups(torch: ModuleType) -> bool:
    """Whether the script made process groups of its own, which count their operations apart."""
    return len(torch.distributed.distributed_c10d._world.pg_map) > 1
