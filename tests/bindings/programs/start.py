"""The common part of the test programs: the rank, the group and its output."""

from __future__ import annotations

import os
from datetime import timedelta

import oneccl_bindings_for_pytorch  # noqa: F401
import torch
import torch.distributed as dist

RANK = int(os.environ.get("RANK") or os.environ["PMI_RANK"])
SIZE = int(os.environ.get("WORLD_SIZE") or os.environ["PMI_SIZE"])

# The names of newer releases of torch.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def init(seconds: float = 60, backend: str = "ccl") -> None:
    torch.set_num_threads(1)
    dist.init_process_group(backend, rank=RANK, world_size=SIZE, timeout=timedelta(seconds=seconds))


def print_line(*values: object) -> None:
    """Print a line by a single write, so that lines of several ranks do not mix."""
    print(f"[{RANK}] " + " ".join(map(str, values)) + "\n", end="", flush=True)
