"""Stores of torch that listen at one address only."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from orch_node.bound_store import bind_store

from tests.support.ports import free_port

TIMEOUT = datetime.timedelta(seconds=5)


def listening_addresses(port: int) -> list[str]:
    """Return the local addresses that listen at this port, as the kernel formats them."""
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    sockets = [line.split() for table in tables for line in table]
    suffix = f":{port:04X}"
    return [fields[1].removesuffix(suffix) for fields in sockets if fields[3] == "0A" and suffix in fields[1]]


def test_store_listens_only_at_its_address() -> None:
    for address, kernel_address in (("127.0.0.1", "0100007F"), ("::1", "0" * 24 + "01000000")):
        distributed = pytest.importorskip("torch.distributed")
        if ":" in address and not Path("/proc/net/if_inet6").exists():
            pytest.skip("this machine has no ::1")
        make_store, port = bind_store(distributed.TCPStore), free_port()
        store = make_store(address, port, 1, True, TIMEOUT, multi_tenant=True)
        assert listening_addresses(port) == [kernel_address]
        store.set("name", "value")
        second_store = make_store(address, port, 1, True, TIMEOUT, multi_tenant=True)
        assert second_store.get("name") == b"value", "one process has one store at a port"
        assert make_store(address, port, 1, False, TIMEOUT).get("name") == b"value"
