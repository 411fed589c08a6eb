"""Choose the network interface by which each node reaches the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Node, links
from orchestrator.planning.launchers import LAUNCHERS
from tests.conftest import make_facts, make_node, make_spec
from tests.support.plans import make_remote_node


def make_linked_node(index: int, *, route: str = "eth1", address: str = "", **detours: str) -> Node:
    """Return a node with one interface that is equal on all nodes and two with different addresses."""
    interfaces = {
        "lo": ("127.0.0.1",),
        "docker0": ("172.17.0.1",),
        "eth0": (f"192.0.2.{index}",),
        "eth1": (f"10.0.0.{index}",),
    }
    facts = replace(make_facts(), interfaces=interfaces, route=route, detours=detours)
    return make_node(f"node{index}", facts, address=address or f"10.0.0.{index}")


NODE1, NODE2 = make_linked_node(1), make_linked_node(2)


def test_interface_of_the_route_or_the_address_is_chosen() -> None:
    for nodes, reason in (
        ((NODE1, NODE2), "route to the other nodes"),
        ((make_linked_node(1, route=""), make_linked_node(2, route="")), "has the node's address"),  # older record
        ((make_linked_node(1, address="203.0.113.1"), NODE2), "which use another address"),  # NAT
        ((make_linked_node(1, node9="eth0"), NODE2), "route to the other nodes"),  # irrelevant detour
        ((make_linked_node(1, node2="eth0"), NODE2), "to some nodes leave through eth0"),  # detour
    ):
        result = links(nodes)
        assert [(link.interface, link.address) for link in result] == [("eth1", "10.0.0.1"), ("eth1", "10.0.0.2")]
        assert reason in result[0].reason


def test_two_routes_without_an_address_are_rejected() -> None:
    nodes = (make_linked_node(1, address="203.0.113.1", node2="eth0"), NODE2, make_linked_node(3))
    with pytest.raises(PlanError, match="reaches the other nodes through eth0 and eth1") as exc_info:
        links(nodes)
    assert "orch_address" in exc_info.value.hint


def test_address_that_other_nodes_cannot_reach_is_rejected() -> None:
    for addresses, message in (
        (("172.17.0.1", "172.17.0.1"), "have the same address, 172.17.0.1"),
        (("127.0.0.1", "127.0.0.1"), "same address"),  # same loopback
        (("127.0.0.1", ""), "loopback address"),
    ):
        nodes = tuple(
            make_linked_node(index, address=address, route="eth1" if not address else "")
            for index, address in enumerate(addresses, 1)
        )
        with pytest.raises(PlanError, match=message):
            links(nodes)


def test_hydra_starts_all_proxies_from_node0_if_interface_names_differ() -> None:
    for interface, expected in (("eth1", None), ("ens5", "20")):
        nodes = (*(make_remote_node(index) for index in range(1, 20)), make_remote_node(20, interface=interface))
        assert LAUNCHERS["mpirun"](make_spec(nodes, ppn=1)).command.env.get("I_MPI_HYDRA_BRANCH_COUNT") == expected
