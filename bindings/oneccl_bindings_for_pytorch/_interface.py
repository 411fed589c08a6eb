"""The network interface that connects a rank with the others.

libfabric would choose the fastest one. On a host with containers that is one of their bridges: it
does not lead to other hosts, and where the container engine rewrites addresses (docker's MASQUERADE) not
even two ranks of this host reach each other through it.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Mapping

LOOPBACK = "lo"
SIOCGIFADDR = 0x8915  # netdevice(7)
DISCARD_PORT = 9  # nothing is sent to it


def interface_to_ranks(env: Mapping[str, str]) -> str | None:
    """Return the interface to the other ranks, according to torchrun's variables.

    Returns:
        The loopback if all ranks are on this host, otherwise the interface of the route to
        MASTER_ADDR; None if the variables do not determine it.
    """
    master = env.get("MASTER_ADDR", "")
    size = env.get("WORLD_SIZE")
    if master == "localhost" or master.startswith("127.") or master == "::1":
        return LOOPBACK
    if size and env.get("LOCAL_WORLD_SIZE") == size:
        return LOOPBACK
    interface = interface_of(address_towards(master)) if master else None
    # A host often resolves its own name to a loopback address, unlike the other hosts.
    return None if interface == LOOPBACK else interface


def address_towards(host: str) -> str | None:
    """Return the IPv4 address from which this host sends to another one."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, DISCARD_PORT))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_of(address: str | None) -> str | None:
    """Return the interface that has this IPv4 address."""
    if address is None:
        return None
    if address.startswith("127."):
        return LOOPBACK
    for _, name in socket.if_nameindex():
        if address_of(name) == address:
            return name
    return None


def address_of(interface: str) -> str | None:
    """Return the first IPv4 address of an interface."""
    request = struct.pack("256s", interface.encode()[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])
    except OSError:
        return None
