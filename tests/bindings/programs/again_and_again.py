"""Call init and destroy several times in one process, with subgroups in a loop."""

from __future__ import annotations

import gc
import os

import torch
import torch.distributed as dist
from start import RANK, SIZE, init, print_line

port = int(os.environ["MASTER_PORT"])
step = 0 if "TORCHELASTIC_RUN_ID" in os.environ else 1
for round_number in range(4):
    # Under hydra rank 0 serves the store; with a new port per round the other ranks cannot connect to the old
    # server. Under torchrun all rounds use the same store, with all old keys.
    os.environ["MASTER_PORT"] = str(port + step * round_number)
    init(30)
    for _ in range(5):
        group = dist.new_group(list(range(SIZE - 1)))
        if RANK < SIZE - 1:
            data = torch.ones(10)
            dist.all_reduce(data, group=group)
            assert data[0] == SIZE - 1
            dist.destroy_process_group(group)
    data = torch.full((1000,), float(round_number))
    dist.all_reduce(data)
    assert data[0] == round_number * SIZE
    dist.destroy_process_group()
    gc.collect()
print_line("fine")
