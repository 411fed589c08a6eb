"""Periodic averaging of weights over nodes instead of averaging gradients at every step.

This is torch's post-local SGD (Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", 2020).
"""

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

WARMUP_STEPS = 10  # at the start, weights change fast, and gradients are averaged over all ranks


class LocalSteps:
    """Local SGD for a model in DistributedDataParallel; it does nothing for other models or with period 0.

    Gradients are averaged over the ranks of a node at every step, weights over all ranks after every `period` steps.
    Each node has its own moments of the optimizer; a checkpoint contains those of rank 0.
    """

    def __init__(self, model: Any, optimizer: Any, period: int) -> None:
        self.parameters: list[Any] = []
        if not period or not isinstance(model, DistributedDataParallel):
            return
        nodes = ranks_of_nodes(ranks.gather(node()))
        if len(nodes) == 1:
            decisions.report_decision("local_sgd has no effect: all ranks are on one node")
            return
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        node_group, _ = dist.new_subgroups_by_enumeration(nodes)
        state = post_local.PostLocalSGDState(None, node_group, start_localSGD_iter=WARMUP_STEPS)
        model.register_comm_hook(state, post_local.post_localSGD_hook)
        averager = averagers.PeriodicModelAverager(period, warmup_steps=WARMUP_STEPS)
        torch_optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        torch_optimizer.register_step_post_hook(lambda *_: averager.average_parameters(iter(self.parameters)))
        decisions.report_decision(f"weights averaged over {len(nodes)} nodes every {period} steps")

    def average_weights(self) -> None:
        """Average the weights over all ranks, before they are saved or evaluated."""
        if self.parameters:
            utils.average_parameters(iter(self.parameters), dist.group.WORLD)


def node() -> str:
    return os.environ.get("ORCH_NODE") or socket.gethostname()


def ranks_of_nodes(nodes: Iterable[str]) -> list[list[int]]:
    """Return the ranks of each node from the node of each rank, nodes in the order of their first rank."""
    by_node: dict[str, list[int]] = {}
    for rank, name in enumerate(nodes):
        by_node.setdefault(name, []).append(rank)
    return list(by_node.values())
