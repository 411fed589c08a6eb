"""Compression of gradients between ranks, with torch's hooks of DistributedDataParallel."""

# No `from __future__ import annotations`: DDP compares the hook's annotations with the classes.
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

RANK = 8  # of PowerSGD's approximations: that of a [384, 1536] matrix has 1/38 of its size
UNCOMPRESSED_STEPS = 10  # at the start, while gradients change fast; PowerSGD needs 2


def in_bf16(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Call torch's hook, which DDP refuses by its name on any backend except NCCL."""
    return default_hooks.bf16_compress_hook(group, bucket)


def in_turn(state: powersgd.PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Run PowerSGD and wait for it.

    PowerSGD starts collectives in callbacks. Those of two buckets at once could start in different orders on different
    ranks, and gloo would then end the process.
    """
    future = powersgd.powerSGD_hook(state, bucket)
    future.wait()
    return future


def compress(model: Any, kind: str) -> None:
    """Register the compression before the first backward(); a model without peers is not changed.

    PowerSGD's pending error is not part of a checkpoint: a resumed run starts without it.
    """
    if kind == "none" or not isinstance(model, DistributedDataParallel):
        return
    if kind == "bf16":
        model.register_comm_hook(None, in_bf16)
        return
    state = powersgd.PowerSGDState(
        process_group=None, matrix_approximation_rank=RANK, start_powerSGD_iter=UNCOMPRESSED_STEPS
    )
    model.register_comm_hook(state, in_turn)
