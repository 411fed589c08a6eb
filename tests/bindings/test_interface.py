"""Without MPI: the interface that ranks take, and a backend that nobody has imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
from oneccl_bindings_for_pytorch._interface import interface_of, interface_to_ranks

ROUTE = (
    subprocess.run(
        ["ip", "-o", "-4", "addr", "show", "scope", "global", "up"], capture_output=True, text=True, check=False
    )
    .stdout.split("\n", 1)[0]
    .split()
)


@pytest.mark.parametrize("master", ["127.0.0.1", "localhost", "::1"])
def test_nobody_else_reaches_a_loopback(master: str) -> None:
    assert interface_to_ranks({"MASTER_ADDR": master}) == "lo"


def test_ranks_that_are_all_here_take_the_loopback() -> None:
    here = {"MASTER_ADDR": "192.0.2.200", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    assert interface_to_ranks(here) == "lo"


@pytest.mark.skipif(not ROUTE, reason="no network: NOTHING is known of ways to other hosts")
def test_ranks_of_several_hosts_take_the_way_to_the_master() -> None:
    name, address = ROUTE[1], ROUTE[3].partition("/")[0]
    asked = {"MASTER_ADDR": address, "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    assert interface_of(address) == name
    # An address of this host is looked up as that of its interface, not of the loopback.
    assert interface_to_ranks(asked) == name


@pytest.mark.parametrize("master", ["", "no-such-host.invalid"])
def test_nothing_is_guessed(master: str) -> None:
    assert interface_to_ranks({"MASTER_ADDR": master}) is None


@pytest.mark.parametrize("by", ["bare", "torchrun"])
def test_ccl_is_known_without_an_import(launch, by: str) -> None:
    done = launch("no_import.py", by=by, warm=False)
    assert done.code == 0, done.text
    assert done.text.count("ccl by lo") == 2, done.text


def test_who_asks_for_gloo_loads_no_ccl() -> None:
    code = (
        "import sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "assert dist.is_backend_available('ccl')\n"
        "assert not [name for name in sys.modules if name.startswith('oneccl_bindings')]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
