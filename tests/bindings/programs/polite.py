"""Tells how polite the thread is that drives collectives: polite.py together | apart. `apart`: rank
1 is a process of another pid namespace, which is another host."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

if sys.argv[1:] == ["apart"] and os.environ["RANK"] == "1":
    words = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, __file__, "there"]
    os.execvp(words[0], words)

import torch
import torch.distributed as dist
from start import SIZE, init, say

NICE = 16  # of what follows the name in /proc/PID/stat (proc(5))


def niceness(thread: str) -> int:
    """Of a thread that may only just have begun."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        for task in Path("/proc/self/task").iterdir():
            if (task / "comm").read_text().strip() == thread:
                time.sleep(0.1)  # its name is the first that it sets
                return int((task / "stat").read_text().rsplit(") ", 1)[1].split()[NICE])
        time.sleep(0.01)
    raise LookupError(thread)


init(20)
ones = torch.ones(1000)
dist.all_reduce(ones)
assert (ones == SIZE).all()
say("nice", niceness("ccl-comm") - os.getpriority(os.PRIO_PROCESS, os.getpid()))
dist.destroy_process_group()
