"""Check the choice of the network interface without MPI, and the backend without an import."""

from __future__ import annotations

import subprocess
import sys

import pytest
from oneccl_bindings_for_pytorch._interface import interface_of, interface_to_ranks

LIST_ADDRESSES = ("ip", "-o", "-4", "addr", "show", "scope", "global", "up")
ROUTE = subprocess.run(LIST_ADDRESSES, capture_output=True, text=True).stdout.partition("\n")[0].split()


def test_a_loopback_master_and_ranks_on_one_host_select_the_loopback_but_an_unknown_master_none() -> None:
    for master in ("127.0.0.1", "localhost", "::1"):
        assert interface_to_ranks({"MASTER_ADDR": master}) == "lo"
    assert interface_to_ranks({"MASTER_ADDR": "192.0.2.200", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}) == "lo"
    assert interface_to_ranks({"MASTER_ADDR": "no-such-host.invalid"}) is None


@pytest.mark.skipif(not ROUTE, reason="no network: the route to other hosts is NOT tested")
def test_ranks_on_several_hosts_use_the_route_to_the_master() -> None:
    name, address = ROUTE[1], ROUTE[3].partition("/")[0]
    env = {"MASTER_ADDR": address, "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    assert interface_of(address) == name
    # An address of this host selects its interface, although its route is the loopback.
    assert interface_to_ranks(env) == name


def test_ccl_is_available_without_an_import(launch) -> None:
    outcome = launch("frameworks/plain.py", launcher="torchrun", warm=False)
    assert outcome.code == 0, outcome.text
    assert outcome.text.count("ccl by lo") == 2, outcome.text


def test_a_gloo_group_does_not_load_ccl() -> None:
    code = (
        "import sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "assert dist.is_backend_available('ccl')\n"
        "assert not [name for name in sys.modules if name.startswith('oneccl_bindings')]\n"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert outcome.returncode == 0, outcome.stderr
