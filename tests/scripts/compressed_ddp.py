"""Fit a linear map on several ranks with compressed gradients: compressed_ddp.py KIND LAYERS [STEP].

KIND is a kind of compression, or `local` for local SGD with one rank per node. STEP is the last one of an earlier
attempt. DDP puts each layer into its own bucket.
Rank 0 prints the losses, whether all ranks have the same weights, and what was sent to other ranks, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "train" / "lib"))

import torch
import torch.distributed as dist
from orch_training.gradients import LocalSteps, compress
from torch.nn.parallel import DistributedDataParallel

STEPS = 40
SENT: list[tuple[str, int]] = []  # dtype and bytes of each all-reduce by a hook


def recorded_all_reduce(tensor, *args, **kwargs):
    if dist.get_world_size(kwargs.get("group")) > 1:
        SENT.append((str(tensor.dtype), tensor.numel() * tensor.element_size()))
    return ALL_REDUCE(tensor, *args, **kwargs)


ALL_REDUCE, dist.all_reduce = dist.all_reduce, recorded_all_reduce


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    target = torch.randn(64, 4) @ torch.randn(4, 64) / 8
    layers = [torch.nn.Linear(64, 64, bias=False) for _ in range(int(sys.argv[2]))]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    os.environ["ORCH_NODE"] = f"node{dist.get_rank()}"
    is_local = sys.argv[1] == "local"
    step = int(sys.argv[3]) if sys.argv[3:] else 0
    compress(model, "none" if is_local else sys.argv[1], step)
    local = LocalSteps(model, optimizer, period=4 if is_local else 0)
    local.resume(step)
    torch.manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(STEPS):
        x = torch.randn(128, 64)
        loss = (model(x) - x @ target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    old_weights = torch.stack([p.detach().clone() for p in model.parameters()])
    local.average_weights()
    changed = not torch.equal(old_weights, torch.stack(list(model.parameters())))
    weights = [torch.empty(64, 64) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, model.module[0].weight.detach())
    if dist.get_rank() == 0:
        same = all(torch.equal(weights[0], rank_weights) for rank_weights in weights)
        print(json.dumps({"losses": losses, "same": same, "sent": SENT, "changed": changed}))
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
