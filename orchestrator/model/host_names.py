"""Checks of host names, addresses and keys before they are written into files and commands; names in known_hosts."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import shlex
from functools import lru_cache

# RFC 1123 2.1, and the underscore, which inventories use and which is special in no file or command.
LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
NAME_LENGTH = 253
SSH_PORT = 22
# Linux allows nearly any 15 bytes (dev_valid_name); these have no special meaning in a shell.
INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@+=~-]{0,14}")
KEY_TYPE = re.compile(r"[a-z0-9][a-z0-9-]*(?:@[a-z0-9.-]+)?")


def is_host_name(text: str) -> bool:
    labels = text.removesuffix(".").split(".")
    return len(text) <= NAME_LENGTH and all(LABEL.fullmatch(label) for label in labels)


@lru_cache(maxsize=1 << 16)  # record, node and ssh block check the same address
def is_address(text: str) -> bool:
    """Return whether the text is an IPv4 or IPv6 address; a link-local one may have a scope: fe80::1%eth0."""
    address, scoped, interface = text.partition("%")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return not scoped or is_interface(interface)


def is_interface(text: str) -> bool:
    return INTERFACE.fullmatch(text) is not None


def is_host(text: str) -> bool:
    return is_host_name(text) or is_address(text)


def is_host_key(text: str) -> bool:
    """Return whether the text is `TYPE BASE64` as in known_hosts; the key begins with its type (RFC 4253 6.6)."""
    kind, _, encoded = text.partition(" ")
    if not KEY_TYPE.fullmatch(kind):
        return False
    try:
        blob = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return False
    name = kind.encode()
    return blob.startswith(len(name).to_bytes(4, "big") + name) and len(blob) > len(name) + 4


def known_host_name(name: str, port: int) -> str:
    """Return a host as known_hosts names it (sshd(8))."""
    return name if port == SSH_PORT else f"[{name}]:{port}"


def keyscan_command(name: str, port: int) -> str:
    """Return the command that prints the keys of a host for known_hosts."""
    return shlex.join(["ssh-keyscan", *([] if port == SSH_PORT else ["-p", str(port)]), name])
