"""How gradients are stored, compressed and averaged over ranks in torch's DistributedDataParallel (DDP)."""

# No `from __future__ import annotations`: DDP compares the annotations of hooks with the classes.
import os
import socket
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from orch_node.protocol.node_names import grouped
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.distributed.algorithms.model_averaging import averagers, utils
from torch.nn.parallel import DistributedDataParallel

from orch_training import describe, ranks

# Gradients are views of DDP's buckets. Otherwise DDP copies them to the buckets and back at every step.
IN_BUCKETS = {"gradient_as_bucket_view": True}
RANK = 8  # of PowerSGD's approximations: that of a [384, 1536] matrix has 1/38 of its size
UNCOMPRESSED_STEPS = 10  # at the start, while gradients change fast; PowerSGD needs 2
WARMUP_STEPS = 10  # of local SGD: at the start, weights change fast, and gradients are averaged over all ranks


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


def compress(model: Any, kind: str, step: int) -> None:
    """Register the compression before the first backward(); a model without peers is not changed.

    PowerSGD's pending error is not part of a checkpoint: a run that is resumed after a step starts without it.
    """
    if kind == "bf16" and isinstance(model, DistributedDataParallel):
        model.register_comm_hook(None, in_bf16)
    elif kind == "powersgd" and isinstance(model, DistributedDataParallel):
        if step:
            ranks.note(describe("resumed-powersgd", steps=UNCOMPRESSED_STEPS))
        state = powersgd.PowerSGDState(None, RANK, start_powerSGD_iter=UNCOMPRESSED_STEPS)
        model.register_comm_hook(state, in_turn)


class LocalSteps:
    """Local SGD: nodes average their weights periodically instead of their gradients at every step.

    This is torch's post-local SGD (Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", 2020). Gradients are
    averaged over the ranks of a node at every step, weights over all ranks after every `period` steps. Nothing happens
    with period 0, on one node, or if the model is not in DDP. Each node has its own moments of the optimizer; a
    checkpoint contains those of rank 0.
    """

    def __init__(self, model: Any, optimizer: Any, period: int) -> None:
        self.parameters: list[Any] = []
        self.hook_state: Any = None
        self.averager: Any = None  # of torch, which needs a process group
        if not period or not isinstance(model, DistributedDataParallel):
            return
        nodes = ranks_of_nodes(ranks.gather(os.environ.get("ORCH_NODE") or socket.gethostname()))
        if len(nodes) == 1:
            ranks.report_decision("local_sgd has no effect: all ranks are on one node")
            return
        self.averager = averagers.PeriodicModelAverager(period, warmup_steps=WARMUP_STEPS)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        node_group, _ = dist.new_subgroups_by_enumeration(nodes)
        self.hook_state = post_local.PostLocalSGDState(None, node_group, start_localSGD_iter=WARMUP_STEPS)
        model.register_comm_hook(self.hook_state, post_local.post_localSGD_hook)
        torch_optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        torch_optimizer.register_step_post_hook(lambda *_: self.averager.average_parameters(iter(self.parameters)))
        ranks.report_decision(f"weights averaged over {len(nodes)} nodes every {period} steps")

    def resume(self, step: int) -> None:
        """Continue after a step of an earlier attempt: warm-up and periods count from the run's first step."""
        if self.hook_state is not None:
            self.hook_state.iter = min(step, WARMUP_STEPS)
            self.averager.step = step
            if step > WARMUP_STEPS:
                ranks.note(describe("resumed-local-sgd"))

    def average_weights(self) -> None:
        """Average the weights over all ranks, before they are saved or evaluated."""
        if self.parameters:
            utils.average_parameters(iter(self.parameters), dist.group.WORLD)


def ranks_of_nodes(nodes: Iterable[str]) -> list[list[int]]:
    """Return the ranks of each node from the node of each rank, nodes in the order of their first rank."""
    return list(grouped((node, rank) for rank, node in enumerate(nodes)).values())
