"""Print the nice value of the communication thread: polite.py together | apart.

With `apart` rank 1 is in another pid namespace, which counts as another host.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

if sys.argv[1:] == ["apart"] and os.environ["RANK"] == "1":
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, __file__, "there"]
    os.execvp(command[0], command)

import torch
import torch.distributed as dist
from start import SIZE, init, print_line

NICE = 16  # index of the field after the name in /proc/PID/stat; see proc(5)


def niceness(thread: str) -> int:
    """Return the nice value of a thread, and wait for the thread if necessary."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for task in Path("/proc/self/task").iterdir():
            if (task / "comm").read_text().strip() == thread:
                time.sleep(0.1)  # it sets its name before its priority
                return int((task / "stat").read_text().rsplit(") ", 1)[1].split()[NICE])
        time.sleep(0.01)
    raise LookupError(thread)


init(20)
tensor = torch.ones(1000)
dist.all_reduce(tensor)
assert (tensor == SIZE).all()
print_line("nice", niceness("ccl-comm") - os.getpriority(os.PRIO_PROCESS, os.getpid()))
dist.destroy_process_group()
