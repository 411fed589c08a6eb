"""Whether the kernel killed a process because memory ran out.

Three witnesses, the surest first: the kernel's log (root, or a readable /dev/kmsg), the counter of
the process' own cgroup, and the node's counter in /proc/vmstat, which everybody may read.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
KMSG = "/dev/kmsg"


class Memory:
    """The kernel's counters of out-of-memory kills as they were when this was made."""

    def __init__(self) -> None:
        self.before = counters()

    def killed(self, pid: int) -> str | None:
        """The words that show that the process was killed for memory, or None."""
        for line in kernel_log():
            if re.search(rf"Killed process {pid}\b", line):
                return line
        for source, now in counters().items():
            if now > self.before.get(source, 0):
                return f"oom_kill in {source} rose from {self.before.get(source, 0)} to {now}"
        return None


def counters() -> dict[str, int]:
    """Source -> its count of kills."""
    sources = [*own_cgroup(), Path("/proc/vmstat")]
    found = {str(path): count_in(path) for path in sources}
    return {source: count for source, count in found.items() if count is not None}


def own_cgroup() -> list[Path]:
    """memory.events of cgroup v2, memory.oom_control of v1: cgroups(7)."""
    found = []
    for line in read("/proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            found.append(CGROUP / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(CGROUP / "memory" / path.lstrip("/") / "memory.oom_control")
    return found


def count_in(path: Path) -> int | None:
    match = re.search(r"^oom_kill (\d+)$", read(path), re.MULTILINE)
    return int(match.group(1)) if match else None


def read(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def message(record: bytes) -> str:
    """The words of one read of /dev/kmsg, "PREFIX;WORDS\\n KEY=VALUE\\n ...":
    Documentation/ABI/testing/dev-kmsg."""
    return record.decode(errors="replace").partition(";")[2].partition("\n")[0]


def kernel_log() -> list[str]:
    """The messages that the kernel still holds; none where we may not read them."""
    try:
        log = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    lines = []
    try:
        while True:
            try:
                record = os.read(log, 8192)
            except BrokenPipeError:  # overwritten while we read: go on with the next
                continue
            lines.append(message(record))
    except OSError:  # BlockingIOError: that was all
        pass
    finally:
        os.close(log)
    return lines
