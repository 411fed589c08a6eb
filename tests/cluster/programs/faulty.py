"""Train a linear model without orch's modules, and fail on rank 1 at step 5 as --fault says.

The script averages gradients and updates weights itself: DDP and the optimizers of torch import torch's compiler,
which takes half of the time of a short run. tests/support/matrix.py runs a script with both.
"""

# The nodes need none of the packages in orch's pyproject.toml.
# /// script
# dependencies = ["torch"]
# ///

import argparse
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a step")
    parser.add_argument("--lines", type=int, default=0, help="printed at each step")
    options = parser.parse_args()
    dist.init_process_group()
    torch.manual_seed(0)  # the same weights on all ranks
    model = torch.nn.Linear(8, 1)
    optimizer = Descent([{"params": model.parameters(), "lr": 0.01}], {})
    for step in range(options.steps):
        if step == 5 and dist.get_rank() == 1:
            FAULTS[options.fault]()
        model(torch.ones(4, 8)).square().mean().backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()
        optimizer.step()
        for line in range(options.lines):
            print(f"step {step} line {line}", flush=True)
        time.sleep(options.seconds)
    print("finished", flush=True)


def raise_error() -> None:
    raise ValueError("boom")


FAULTS = {"none": lambda: None, "exception": raise_error, "sleep": lambda: time.sleep(3600)}

if __name__ == "__main__":
    main()
