"""Train a linear model without orch's modules; with --fault shm, fill the shared memory on rank 1 at step 5.

The script averages gradients and updates weights itself: DDP and the optimizers of torch import torch's compiler,
which takes half of the time of a short run. tests/support/matrix.py runs a script with both.
"""

# The nodes need none of the packages in orch's pyproject.toml.
# /// script
# dependencies = ["torch"]
# ///

import argparse
import mmap
import os
import time
from typing import Any

import torch
import torch.distributed as dist


class Descent(torch.optim.Optimizer):
    """Gradient descent without the methods of Optimizer that import torch's compiler."""

    def add_param_group(self, group: dict[str, Any]) -> None:
        self.param_groups.append({**group, "params": list(group["params"])})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight -= group["lr"] * weight.grad
                weight.grad = None


def fill_shm() -> None:
    """Write to a larger mapping than /dev/shm has space for, which raises SIGBUS."""
    space = os.statvfs("/dev/shm")
    size = space.f_bavail * space.f_frsize + (64 << 20)
    with open(f"/dev/shm/torch_{os.getpid()}_1_0", "wb+") as file:
        file.truncate(size)
        memory = mmap.mmap(file.fileno(), size)
        time.sleep(1)
        for page in range(0, size, 1 << 20):
            memory[page : page + (1 << 20)] = b"x" * (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "shm"], default="none")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lines", type=int, default=0, help="printed at each step")
    options = parser.parse_args()
    dist.init_process_group()
    torch.manual_seed(0)  # the same weights on all ranks
    model = torch.nn.Linear(8, 1)
    optimizer = Descent([{"params": model.parameters(), "lr": 0.01}], {})
    for step in range(options.steps):
        if options.fault == "shm" and (step, dist.get_rank()) == (5, 1):
            fill_shm()
        model(torch.ones(4, 8)).square().mean().backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()
        optimizer.step()
        for line in range(options.lines):
            print(f"step {step} line {line}", flush=True)
        time.sleep(0.02)
    print("finished", flush=True)


if __name__ == "__main__":
    main()
