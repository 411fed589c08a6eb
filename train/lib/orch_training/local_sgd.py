"""Weights that nodes average now and then, in the place of gradients that travel at every step:
torch's post-local SGD (Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", 2020)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local
from torch.distributed.algorithms.model_averaging import averagers, utils
from torch.nn.parallel import DistributedDataParallel

from orch_training import decisions, ranks

WHOLE_STEPS = 10  # at the start gradients travel at every step: weights move fast


class LocalSteps:
    """Of a model that DistributedDataParallel has wrapped; else, and with period 0, nothing.

    Gradients are averaged over the ranks of a node at every step, weights over all ranks after
    every `period` steps. The optimizer's moments stay each node's own: a checkpoint has rank 0's.
    """

    def __init__(self, model: Any, optimizer: Any, period: int) -> None:
        self.parameters: list[Any] = []
        if not period or not isinstance(model, DistributedDataParallel):
            return
        nodes = ranks_of_nodes(ranks.gather(node()))
        if len(nodes) == 1:
            decisions.tell("local_sgd has no effect: all ranks are on one node")
            return
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        own, _ = dist.new_subgroups_by_enumeration(nodes)
        state = post_local.PostLocalSGDState(None, own, start_localSGD_iter=WHOLE_STEPS)
        model.register_comm_hook(state, post_local.post_localSGD_hook)
        averager = averagers.PeriodicModelAverager(period, warmup_steps=WHOLE_STEPS)
        torchs = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        torchs.register_step_post_hook(lambda *_: averager.average_parameters(iter(self.parameters)))
        decisions.tell(f"weights averaged over {len(nodes)} nodes every {period} steps")

    def agree(self) -> None:
        """Average now, on all ranks: before weights are saved, and before they are judged."""
        if self.parameters:
            utils.average_parameters(iter(self.parameters), dist.group.WORLD)


def node() -> str:
    return os.environ.get("ORCH_NODE") or socket.gethostname()


def ranks_of_nodes(nodes: Iterable[str]) -> list[list[int]]:
    """The node of each rank -> the ranks of each node, nodes in the order of their first rank."""
    found: dict[str, list[int]] = {}
    for rank, name in enumerate(nodes):
        found.setdefault(name, []).append(rank)
    return list(found.values())
