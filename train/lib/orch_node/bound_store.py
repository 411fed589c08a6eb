"""Restrict torch's TCPStores to the planned address.

A TCPStore listens on all interfaces, whatever its address is, without authentication. For a numeric
address, the socket is created here and passed to the store. A name (as of a pod) may resolve to an
address that is not local, so torch handles it.
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
    """Have the TCPStores that a module of torch creates listen at their own address only."""
    if not hasattr(module.TCPStore, "bound_by_orch"):
        vars(module)["TCPStore"] = bind_store(module.TCPStore)


def bind_store(store: type[Any]) -> Callable[..., Any]:
    """Return a function that creates TCPStores, with the same arguments, that listen at one address."""

    def make(
        host_name: str, port: int, world_size: Any = None, is_master: bool = False, *args: Any, **options: Any
    ) -> Any:
        if is_master and KEYWORD not in options and is_numeric(host_name):
            if KEYWORD in (store.__init__.__doc__ or ""):
                options |= listening_socket(host_name, port)
            else:
                print(
                    f"orch: this torch cannot restrict a store: port {port} is open on all interfaces.", file=sys.stderr
                )
        return store(host_name, port, world_size, is_master, *args, **options)

    vars(make)["bound_by_orch"] = True
    return make


def is_numeric(host: str) -> bool:
    """Return whether this is an IP address and not a name."""
    try:
        return bool(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return False


def listening_socket(host: str, port: int) -> dict[str, int]:
    """Return the option with a socket that listens at an address.

    Returns:
        An empty dictionary if this process has a store there, which torch then shares.

    Raises:
        OSError: if the address does not belong to this host.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST)[0]
    try:
        return {KEYWORD: socket.create_server(address, family=family, backlog=BACKLOG).detach()}
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return {}
        raise
