"""Find free ports for servers that a test starts on this machine."""

from __future__ import annotations

import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(count: int = 1) -> int:
    """Return the first of `count` consecutive free ports, outside of the range from which the kernel assigns ports.

    Other programs cannot get such a port by chance before the server binds it.

    Raises:
        RuntimeError: if there are none.
    """
    first = int(RANGE.read_text().split()[0])
    for _ in range(100):
        port = random.randrange(min(10_000, first // 2), first - count)
        if all(map(is_free, range(port, port + count))):
            return port
    raise RuntimeError(f"there are no {count} consecutive free ports below {first}")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
