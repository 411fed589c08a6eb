"""A plain DDP script that knows nothing of orch, and does what --fault says on rank 1 at step 5."""

import argparse
import mmap
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def fill_shm() -> None:
    """More than there is: touching what cannot be had is a SIGBUS."""
    room = os.statvfs("/dev/shm")
    size = room.f_bavail * room.f_frsize + (64 << 20)
    with open(f"/dev/shm/torch_{os.getpid()}_1_0", "wb+") as file:
        file.truncate(size)
        memory = mmap.mmap(file.fileno(), size)
        time.sleep(1)
        for page in range(0, size, 1 << 20):
            memory[page : page + (1 << 20)] = b"x" * (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a step")
    parser.add_argument("--lines", type=int, default=0, help="printed at each step")
    options = parser.parse_args()
    dist.init_process_group()
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(options.steps):
        if step == 5 and dist.get_rank() == 1:
            FAULTS[options.fault]()
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        for line in range(options.lines):
            print(f"step {step} line {line}", flush=True)
        time.sleep(options.seconds)
    print("finished", flush=True)


def boom() -> None:
    raise ValueError("boom")


FAULTS = {
    "none": lambda: None,
    "exception": boom,
    "exit": lambda: sys.exit(7),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "shm": fill_shm,
    "sleep": lambda: time.sleep(3600),
}

if __name__ == "__main__":
    main()
