"""Names of hosts: valid names, addresses and keys, the ranges that --nodes selects, and known_hosts."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import shlex
from collections.abc import Callable
from functools import lru_cache

from orch_node.protocol.node_names import fold as fold
from orch_node.protocol.node_names import grouped as grouped
from orch_node.protocol.node_names import ranges as ranges

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


def keyscan_command(name: str, port: int, alias: str | None = None) -> str:
    """Return the command that prints the keys of a host for known_hosts, under its HostKeyAlias if it has one."""
    command = shlex.join(["ssh-keyscan", *([] if port == SSH_PORT else ["-p", str(port)]), name])
    return command + (f" | sed {shlex.quote(f's/^[^ ]*/{alias}/')}" if alias else "")


RANGE = re.compile(r"\[\d+[-:]\d+\]")
BRACKETS = re.compile(r"(?P<before>[^\[\]]*)\[(?P<items>[^\[\]]*)\](?P<after>.*)")
ITEM = re.compile(
    r"(?P<first>[0-9]{1,9}|[a-z]|[A-Z])(?:[-:](?P<last>[0-9]{1,9}|[a-z]|[A-Z])(?::(?P<step>[1-9][0-9]{0,8}))?)?"
)
MAX_HOSTS = 10_000  # of one list


Nodes = int | str  # a number of nodes; or names, ranges, groups or patterns


def parse_nodes(value: Nodes) -> Nodes:
    """Return the nodes that a value of --nodes selects; from the command line, numbers are text."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else value


def expand(pattern: str, is_group: Callable[[str], bool]) -> list[str]:
    """Return the names in ranges (`node[08-10,12]` -> node08, node09, node10, node12), or any other pattern unchanged.

    Brackets after the name of a group are Ansible's subscript, and stay.

    Raises:
        ValueError: if a range is descending or too large, or one of several is invalid.
    """
    sign = pattern[:1] if pattern[:1] in ("!", "&") else ""
    text = pattern[len(sign) :]
    match = BRACKETS.fullmatch(text)
    if match is None or sign == "&" or text.startswith("~"):
        return [pattern]
    if "," not in text and (is_group(match["before"]) or not RANGE.search(text)):
        return [pattern]
    return [f"{sign}{name}" for name in expand_list(text)]


def split_list(text: str) -> list[str]:
    """Return the parts of a list of hosts (`node[1,3],gpu1`), which commas outside of brackets divide."""
    return [part for part in re.split(r",(?![^\[\]]*\])", text) if part]


def expand_list(pattern: str) -> list[str]:
    """Return the names in a pattern with any number of ranges, as Slurm and Ansible write them.

    `rack[1-2]n[08-09,12]` has Slurm's ranges, `node[1:9:2]` and `node[a:c]` have Ansible's.

    Raises:
        ValueError: if a range is invalid or descending, or the pattern has more than MAX_HOSTS names.
    """
    match = BRACKETS.fullmatch(pattern)
    if match is None:
        return [pattern]
    items = [item for text in match["items"].split(",") for item in expand_item(text)]
    endings = expand_list(match["after"])
    if len(items) * len(endings) > MAX_HOSTS:
        raise ValueError(f"{pattern!r:.80} has more than {MAX_HOSTS} hosts")
    return [f"{match['before']}{item}{ending}" for item in items for ending in endings]


def expand_item(text: str) -> list[str]:
    """Return the numbers or letters of one range, or a single one; numbers keep their leading zeros."""
    match = ITEM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.80} is not a range")
    first, last, step = match["first"], match["last"] or match["first"], int(match["step"] or 1)
    if first.isdecimal() != last.isdecimal():
        raise ValueError(f"{text!r:.80} is not a range")
    start, end = (int(first), int(last)) if first.isdecimal() else (ord(first), ord(last))
    if not 0 <= end - start < MAX_HOSTS:
        raise ValueError(f"{text!r:.80} is descending or has more than {MAX_HOSTS} hosts")
    numbers = range(start, end + 1, step)
    return [f"{number:0{len(first)}}" if first.isdecimal() else chr(number) for number in numbers]
