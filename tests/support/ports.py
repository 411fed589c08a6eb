"""Ports for servers that a test starts on this machine."""

from __future__ import annotations

import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(count: int = 1) -> int:
    """The first of `count` free ports in a row, below those that the kernel gives to whoever
    connects or binds to port 0: nobody takes them by chance before the server does."""
    first = int(RANGE.read_text().split()[0])
    for _ in range(100):
        port = random.randrange(min(10_000, first // 2), first - count)
        if all(map(is_free, range(port, port + count))):
            return port
    raise RuntimeError(f"no {count} free ports in a row below {first}")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
