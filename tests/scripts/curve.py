"""Plain DDP that knows nothing of orch: a loss curve, the environment it found, who listens where
meanwhile, and if asked to (`--fail R`) an exception on rank R at the end."""

import json
import os
import sys

import listening
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, SAMPLES = 10, 8


def data(rank: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's share of one data set."""
    made = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 6, generator=made)
    targets = inputs.sum(dim=1, keepdim=True) + torch.randn(SAMPLES, 1, generator=made)
    return inputs[rank::ranks], targets[rank::ranks]


def curve(rank: int, ranks: int) -> list[float]:
    """The mean loss over all ranks, step by step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    wrapped = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    inputs, targets = data(rank, ranks)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(wrapped(inputs), targets)
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        if ranks > 1:
            dist.all_reduce(total)
        losses.append(total.item() / ranks)
    return losses


def main() -> None:
    dist.init_process_group()
    rank = dist.get_rank()
    print("LOSSES", json.dumps(curve(rank, dist.get_world_size())))
    print("BACKEND", dist.get_backend())
    print("ENVIRONMENT", json.dumps(dict(os.environ)))
    dist.all_reduce(torch.ones(1 << 20))  # too large for a greeting
    print("LISTENERS", json.dumps(listening.listeners(os.environ["ORCH_RUN_DIR"])))
    sys.stdout.flush()
    dist.barrier()  # nobody has left before all have looked
    if sys.argv[1:] == ["--fail", str(rank)]:
        raise ValueError("boom of this script")
    dist.barrier()


if __name__ == "__main__":
    main()
