"""Create a group with new_group on one rank only."""

from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist
from start import RANK, init

init()
if RANK == 1:
    time.sleep(20)
# By default a new group has torch's timeout, not that of init_process_group.
dist.new_group([0, 1], timeout=timedelta(seconds=5))
