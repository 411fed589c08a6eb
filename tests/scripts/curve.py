"""Plain DDP that knows nothing of orch: a loss curve, the environment it found, who listens where
meanwhile, and if asked to (`--fail R`) an exception on rank R at the end. `--by-hand`: the same
without DDP and torch's optimizers, which import torch's compiler, half of all that a rank takes."""

import argparse
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
    """This rank's share of one data set."""
    made = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 6, generator=made)
    targets = inputs.sum(dim=1, keepdim=True) + torch.randn(SAMPLES, 1, generator=made)
    return inputs[rank::ranks], targets[rank::ranks]


class ByHand:
    """What DDP and SGD do: the mean of all ranks' gradients, taken off the weights."""

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
    """The mean loss over all ranks, step by step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    wrapped = DistributedDataParallel(model) if ranks > 1 and not by_hand else model
    weights = list(wrapped.parameters())
    optimizer = ByHand(weights, ranks) if by_hand else torch.optim.SGD(weights, lr=0.1)
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


def parent(pid: int) -> int:
    return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


def name(pid: int) -> str:
    return (PROC / str(pid) / "comm").read_text().strip()


def of_run(pid: int, run: str) -> bool:
    try:
        return f"ORCH_RUN_DIR={run}".encode() in (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False


def processes(run: str) -> set[int]:
    """Those that name the run, and the daemons above them, up to what serves the connection."""
    numbers = [int(one.name) for one in PROC.iterdir() if one.name.isdigit()]
    found = {pid for pid in numbers if of_run(pid, run)}
    for pid in list(found):
        while (pid := parent(pid)) > 1 and (name(pid).startswith(("hydra", "mpiexec", "prte"))):
            found.add(pid)
    return found


def sockets(pid: int) -> set[str]:
    found = set()
    try:
        for one in (PROC / str(pid) / "fd").iterdir():
            link = os.readlink(one)
            if link.startswith("socket:["):
                found.add(link[8:-1])
    except OSError:
        pass
    return found


def address(hexadecimal: str) -> str:
    words = [int(hexadecimal[at : at + 8], 16) for at in range(0, len(hexadecimal), 8)]
    return str(ipaddress.ip_address(b"".join(struct.pack("=I", word) for word in words)))


def listening() -> dict[str, str]:
    """Inode of a socket -> where it listens."""
    found = {}
    for table in ("tcp", "tcp6"):
        for line in (PROC / "self/net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN:
                found[fields[9]] = address(fields[1].partition(":")[0])
    return found


def listeners(run: str) -> list[tuple[str, str]]:
    """(program, address) of each socket that a process of the run listens with."""
    known = listening()
    return [(name(pid), known[inode]) for pid in processes(run) for inode in sockets(pid) & set(known)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", type=int, metavar="R")
    parser.add_argument("--by-hand", action="store_true")
    asked = parser.parse_args()
    dist.init_process_group()
    rank = dist.get_rank()
    print("LOSSES", json.dumps(curve(rank, dist.get_world_size(), asked.by_hand)))
    print("BACKEND", dist.get_backend())
    print("ENVIRONMENT", json.dumps(dict(os.environ)))
    dist.all_reduce(torch.ones(1 << 20))  # too large for a greeting
    print("LISTENERS", json.dumps(listeners(os.environ["ORCH_RUN_DIR"])))
    sys.stdout.flush()
    dist.barrier()  # nobody has left before all have looked
    if asked.fail == rank:
        raise ValueError("boom of this script")
    dist.barrier()


if __name__ == "__main__":
    main()
