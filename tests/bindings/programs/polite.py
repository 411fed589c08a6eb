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


def niceness(thread: str, awaited: int | None) -> int:
    """Return the nice value of a thread; wait for the thread, and for a value that it has yet to set."""
    deadline = time.monotonic() + 10
    value = None
    while time.monotonic() < deadline and (value is None or value != awaited):
        time.sleep(0.1)  # the thread sets its name before its priority
        for task in Path("/proc/self/task").iterdir():
            if (task / "comm").read_text().strip() == thread:
                value = int((task / "stat").read_text().rsplit(") ", 1)[1].split()[NICE])
        if awaited is None and value is not None:
            break
    if value is None:
        raise LookupError(thread)
    return value


init(20)
tensor = torch.ones(1000)
dist.all_reduce(tensor)
assert (tensor == SIZE).all()
process_nice = os.getpriority(os.PRIO_PROCESS, os.getpid())
print_line("nice", niceness("ccl-comm", process_nice + 10 if sys.argv[1:] == ["together"] else None) - process_nice)
dist.destroy_process_group()
