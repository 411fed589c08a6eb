"""Find out whether the kernel killed a process because memory ran out.

Sources, the most reliable first: the kernel's log (root, or a readable /dev/kmsg), the counter of
the process' own cgroup, and the node's counter in /proc/vmstat, which everybody may read.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from orch_node.standalone import facts

CGROUP = Path("/sys/fs/cgroup")
KMSG = "/dev/kmsg"


class OomDetector:
    """The kernel's counters of out-of-memory kills when this object was created."""

    def __init__(self) -> None:
        self.initial_counts = oom_kill_counts()

    def find_evidence(self, pid: int) -> str | None:
        """Return the text that shows that the process was killed for memory, or None."""
        for line in kernel_log():
            if re.search(rf"Killed process {pid}\b", line):
                return line
        for source, count in oom_kill_counts().items():
            initial = self.initial_counts.get(source, 0)
            if count > initial:
                return f"oom_kill in {source} rose from {initial} to {count}"
        return None


def oom_kill_counts() -> dict[str, int]:
    """Return the number of out-of-memory kills, by the file that reports it."""
    counts = {}
    for path in (*cgroup_files(), Path("/proc/vmstat")):
        if match := re.search(r"^oom_kill (\d+)$", facts.read_text(path), re.MULTILINE):
            counts[str(path)] = int(match.group(1))
    return counts


def cgroup_files() -> list[Path]:
    """Return this process' memory.events of cgroup v2 or memory.oom_control of v1: cgroups(7)."""
    paths = []
    for line in facts.read_text(Path("/proc/self/cgroup")).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            paths.append(CGROUP / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            paths.append(CGROUP / "memory" / path.lstrip("/") / "memory.oom_control")
    return paths


def kernel_log() -> list[str]:
    """Return the messages that the kernel still holds, or none without permission to read them."""
    try:
        log = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    messages = []
    try:
        while True:
            try:
                record = os.read(log, 8192)
            except BrokenPipeError:  # the record was overwritten while it was read
                continue
            # "PREFIX;MESSAGE\n KEY=VALUE\n ...", see Documentation/ABI/testing/dev-kmsg.
            messages.append(record.decode(errors="replace").partition(";")[2].partition("\n")[0])
    except OSError:  # BlockingIOError: the end of the log
        pass
    finally:
        os.close(log)
    return messages
