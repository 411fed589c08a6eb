"""What gradients become on their way between ranks: torch's hooks of DistributedDataParallel."""

# No `from __future__ import annotations`: DDP compares the hook's annotations with the classes.
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

RANK = 8  # of the approximations: one of a [384, 1536] matrix is 1/38 of it
WHOLE_STEPS = 10  # at the start, while gradients change fast; PowerSGD needs 2


def in_bf16(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """torch's own, which DDP refuses by its name on any backend but NCCL."""
    return default_hooks.bf16_compress_hook(group, bucket)


def in_turn(state: powersgd.PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PowerSGD begins collectives in callbacks. Those of two buckets at once could come in one
    order on this rank and in another on the next: gloo then ends the process."""
    done = powersgd.powerSGD_hook(state, bucket)
    done.wait()
    return done


def compress(model: Any, kind: str) -> None:
    """Before the first backward(); a model without peers stays as it is. What PowerSGD has not
    sent yet is no part of a checkpoint: it begins anew in a run that goes on from one."""
    if kind == "none" or not isinstance(model, DistributedDataParallel):
        return
    if kind == "bf16":
        model.register_comm_hook(None, in_bf16)
        return
    state = powersgd.PowerSGDState(process_group=None, matrix_approximation_rank=RANK, start_powerSGD_iter=WHOLE_STEPS)
    model.register_comm_hook(state, in_turn)
