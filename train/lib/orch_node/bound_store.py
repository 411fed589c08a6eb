"""TCPStores that listen at the planned address alone.

torch's listen on all interfaces, whatever address they are given, and ask nobody who he is. Where
an address is given by its number, the socket is made here and handed to the store; a name (as that
of a pod) may lead to another address than its owner's, and is left to torch.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

BACKLOG = 4096
KEYWORD = "master_listen_fd"  # torch 2.1 and newer


def bind_stores(module: ModuleType) -> None:
    """Have the TCPStores that this module of torch's makes listen at their own address alone."""
    if not hasattr(module.TCPStore, "bound_by_orch"):
        vars(module)["TCPStore"] = bound(module.TCPStore)


def bound(store: type[Any]) -> Callable[..., Any]:
    """What makes a TCPStore of `store`, with the same arguments."""

    def make(
        host_name: str, port: int, world_size: int | None = None, is_master: bool = False, *words: Any, **options: Any
    ) -> Any:
        if is_master and KEYWORD not in options and is_number(host_name):
            if KEYWORD in (store.__init__.__doc__ or ""):
                options |= listening(host_name, port)
            else:
                tell_open(port)
        return store(host_name, port, world_size, is_master, *words, **options)

    vars(make)["bound_by_orch"] = True
    return make


def is_number(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return False


def listening(host: str, port: int) -> dict[str, int]:
    """The option with a socket that listens there; none where this process has a store there
    already, which torch then shares. Raises OSError where the address is not this host's."""
    family, kind, number, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
    )[0]
    with socket.socket(family, kind, number) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return {}
            raise
        one.listen(BACKLOG)
        return {KEYWORD: one.detach()}


def tell_open(port: int) -> None:
    print(f"orch: this torch cannot be told where to listen: port {port} is open on all interfaces.", file=sys.stderr)
