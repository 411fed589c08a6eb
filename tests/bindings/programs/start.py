"""The common part of the test programs: the rank, the group and its output."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
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


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (RuntimeError, ValueError) as error:  # DistBackendError is a RuntimeError
        return f"{type(error).__name__}: {error}"
    return "no error"


def run_in_child(action: Callable[[], object]) -> int:
    """Run an action in a forked child, which exits normally, and return its exit code."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException as error:
            print_line(type(error).__name__, error)
            sys.exit(7)
        sys.exit(0)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")
