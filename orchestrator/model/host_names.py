"""What may stand for a host where it is written into files and commands: its name, address, key."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from functools import lru_cache

# RFC 1123 2.1, and the underscore, which inventories use and no file or command reads as its own.
LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
NAME_LENGTH = 253
# Linux takes nearly any 15 bytes (dev_valid_name); these are those that no shell reads otherwise.
INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@+=~-]{0,14}")
KEY_TYPE = re.compile(r"[a-z0-9][a-z0-9-]*(?:@[a-z0-9.-]+)?")


def is_host_name(text: str) -> bool:
    labels = text.removesuffix(".").split(".")
    return len(text) <= NAME_LENGTH and all(LABEL.fullmatch(label) for label in labels)


@lru_cache(maxsize=1 << 16)  # each is asked for by its record, its node and its ssh block
def is_address(text: str) -> bool:
    """IPv4 or IPv6; a link-local one may name its interface: fe80::1%eth0."""
    plain, scoped, interface = text.partition("%")
    try:
        ipaddress.ip_address(plain)
    except ValueError:
        return False
    return not scoped or is_interface(interface)


def is_interface(text: str) -> bool:
    return INTERFACE.fullmatch(text) is not None


def is_host(text: str) -> bool:
    return is_host_name(text) or is_address(text)


def is_host_key(text: str) -> bool:
    """`TYPE BASE64`, as in known_hosts: RFC 4253 6.6 has the key begin with its type."""
    kind, _, encoded = text.partition(" ")
    if not KEY_TYPE.fullmatch(kind):
        return False
    try:
        blob = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return False
    name = kind.encode()
    return blob.startswith(len(name).to_bytes(4, "big") + name) and len(blob) > len(name) + 4
