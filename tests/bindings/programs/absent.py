"""One rank never comes to new_group."""

from __future__ import annotations

import time

import torch.distributed as dist
from start import RANK, init

init(5)
if RANK == 1:
    time.sleep(20)
dist.new_group([0, 1])
