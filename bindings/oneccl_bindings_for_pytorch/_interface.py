"""The network interface towards the other ranks. libfabric would take the fastest, which on a host
with containers is a bridge of theirs: no other host is there, and where the engine rewrites the
addresses of what passes it (docker's MASQUERADE) not even two ranks of this host find each other.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Mapping

LOOPBACK = "lo"
SIOCGIFADDR = 0x8915  # netdevice(7)
DISCARD = 9  # a port: nothing is sent to it


def towards_others(env: Mapping[str, str]) -> str | None:
    """By torchrun's variables: the loopback for ranks that are all on this host, else the way to
    MASTER_ADDR. None: they do not tell."""
    master = env.get("MASTER_ADDR", "")
    size = env.get("WORLD_SIZE")
    if master == "localhost" or master.startswith("127.") or master == "::1":
        return LOOPBACK
    if size and env.get("LOCAL_WORLD_SIZE") == size:
        return LOOPBACK
    found = interface_of(address_towards(master)) if master else None
    # A host's own name is often that of a loopback address: the others see another one there.
    return None if found == LOOPBACK else found


def address_towards(host: str) -> str | None:
    """This host's IPv4 address in what it sends there."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, DISCARD))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_of(address: str | None) -> str | None:
    if address is None:
        return None
    if address.startswith("127."):
        return LOOPBACK
    for _, name in socket.if_nameindex():
        if address_of(name) == address:
            return name
    return None


def address_of(interface: str) -> str | None:
    """The first IPv4 address of an interface."""
    request = struct.pack("256s", interface.encode()[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])
    except OSError:
        return None
