"""Fork DataLoader workers while a group exists; they must neither hang nor disturb it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from start import RANK, SIZE, init, print_line
from torch.utils.data import DataLoader, TensorDataset

init(30)
data = torch.ones(1000)
dist.all_reduce(data)
for _ in range(2):
    loader = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=8, num_workers=2)
    total = 0.0
    for (batch,) in loader:
        total += batch.sum().item()
        pending = dist.all_reduce(data, async_op=True)
        pending.wait()
    assert total == 2016

check = torch.ones(1)
dist.all_reduce(check)
assert check.item() == SIZE
dist.destroy_process_group()
print_line("fine", RANK)
