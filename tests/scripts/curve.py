"""Train with DDP, without anything of orch, and print the loss curve, the environment and the listening sockets.

`--fail R` raises an exception on rank R at the end. `--by-hand` trains without DDP and torch's optimizers, which import
torch's compiler; the import takes half of the time of a rank.
"""

# The nodes need none of the packages in orch's pyproject.toml.
# /// script
# dependencies = ["torch"]
# ///

import argparse
import contextlib
import ipaddress
import json
import os
import struct
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, SAMPLES = 10, 8
LISTEN = "0A"  # the state of a socket in /proc/net/tcp
PROC = Path("/proc")


def data(rank: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's share of the data."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 6, generator=generator)
    targets = inputs.sum(dim=1, keepdim=True) + torch.randn(SAMPLES, 1, generator=generator)
    return inputs[rank::ranks], targets[rank::ranks]


class AveragingSGD:
    """SGD with gradients averaged over all ranks, which replaces DDP and torch's SGD."""

    def __init__(self, weights: list[torch.Tensor], ranks: int) -> None:
        self.weights, self.ranks = weights, ranks

    def zero_grad(self) -> None:
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for weight in self.weights:
            dist.all_reduce(weight.grad)
            weight -= 0.1 / self.ranks * weight.grad


def curve(rank: int, ranks: int, by_hand: bool = False) -> list[float]:
    """Train, and return the mean loss over all ranks for each step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    wrapped = DistributedDataParallel(model) if ranks > 1 and not by_hand else model
    weights = list(wrapped.parameters())
    optimizer = AveragingSGD(weights, ranks) if by_hand else torch.optim.SGD(weights, lr=0.1)
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


def parse_address(hexadecimal: str) -> str:
    """Return an IP address from the notation of /proc/net/tcp."""
    numbers = [int(hexadecimal[start : start + 8], 16) for start in range(0, len(hexadecimal), 8)]
    return str(ipaddress.ip_address(b"".join(struct.pack("=I", number) for number in numbers)))


def listeners(run_dir: str) -> list[tuple[str, str]]:
    """Return the program and the address of each listening socket of processes with the run in their environment."""
    addresses = {}
    for table in ("tcp", "tcp6"):
        for line in (PROC / "self/net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN:
                addresses[f"socket:[{fields[9]}]"] = parse_address(fields[1].partition(":")[0])
    listening = []
    for folder in PROC.glob("[0-9]*"):
        try:
            if f"ORCH_RUN_DIR={run_dir}".encode() in (folder / "environ").read_bytes():
                program = (folder / "comm").read_text().strip()
                for file in (folder / "fd").iterdir():
                    with contextlib.suppress(FileNotFoundError):  # that of this loop is closed
                        listening += [(program, address) for address in [addresses.get(os.readlink(file))] if address]
        except OSError:  # it has ended, or belongs to another user
            continue
    return listening


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", type=int, metavar="R")
    parser.add_argument("--by-hand", action="store_true")
    options = parser.parse_args()
    dist.init_process_group()
    rank = dist.get_rank()
    print("LOSSES", json.dumps(curve(rank, dist.get_world_size(), options.by_hand)))
    print("BACKEND", dist.get_backend())
    print("ENVIRONMENT", json.dumps(dict(os.environ)))
    dist.all_reduce(torch.ones(1 << 20))  # large enough that ranks open connections for data
    print("LISTENERS", json.dumps(listeners(os.environ["ORCH_RUN_DIR"])))
    sys.stdout.flush()
    dist.barrier()  # no rank ends before all have listed the sockets
    if options.fail == rank:
        raise ValueError("boom of this script")
    dist.barrier()


if __name__ == "__main__":
    main()
