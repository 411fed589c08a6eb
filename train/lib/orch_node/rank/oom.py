"""Find out whether the kernel killed a process because memory ran out.

Sources, the most reliable first: the kernel's log (dmesg as root, or where everybody may read it), and the node's
counter in /proc/vmstat, which everybody may read, and which counts the kills in cgroups, too.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from orch_node.standalone import facts

VMSTAT = Path("/proc/vmstat")
DMESG_SECONDS = 10.0


class OomDetector:
    """The kernel's counter of out-of-memory kills when this object was created."""

    def __init__(self) -> None:
        self.initial_count = oom_kill_count()

    def find_evidence(self, pid: int) -> str | None:
        """Return the text that shows that the process was killed for memory, or None."""
        for line in kernel_log():
            if re.search(rf"Killed process {pid}\b", line):
                return line
        count = oom_kill_count()
        return f"oom_kill in {VMSTAT} rose from {self.initial_count} to {count}" if count > self.initial_count else None


def oom_kill_count() -> int:
    match = re.search(r"^oom_kill (\d+)$", facts.read_text(VMSTAT), re.MULTILINE)
    return int(match.group(1)) if match else 0


def kernel_log() -> list[str]:
    """Return the messages that the kernel still holds, or none without permission to read them."""
    try:
        process = subprocess.run(["dmesg"], capture_output=True, stdin=subprocess.DEVNULL, timeout=DMESG_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [re.sub(r"^\[[ \d.]+\] ", "", line) for line in process.stdout.decode(errors="replace").splitlines()]
