"""One rank never comes to new_group."""

from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist
from start import RANK, init

init()
if RANK == 1:
    time.sleep(20)
# Without a timeout of its own a new group has torch's default, not the one of init_process_group.
dist.new_group([0, 1], timeout=timedelta(seconds=5))
