from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import PlanError
from orchestrator.launchers import LAUNCHERS
from orchestrator.model.cluster import Node
from orchestrator.model.links import links
from orchestrator.planning.hosts import explain_network
from tests.conftest import make_facts, make_job, make_node


def node(index: int, *, route: str = "eth1", address: str = "", **detours: str) -> Node:
    """Return a node with one interface that is equal on all nodes and two with different addresses."""
    interfaces = {
        "lo": ("127.0.0.1",),
        "docker0": ("172.17.0.1",),
        "eth0": (f"192.0.2.{index}",),
        "eth1": (f"10.0.0.{index}",),
    }
    facts = replace(make_facts(), interfaces=interfaces, route=route, detours=detours)
    return make_node(f"node{index}", facts, address=address or f"10.0.0.{index}")


def chosen(*nodes: Node) -> list[tuple[str, str]]:
    return [(link.interface, link.address) for link in links(nodes)]


def test_one_node_needs_no_link() -> None:
    assert links((node(1),)) == ()


def test_the_route_to_the_other_nodes() -> None:
    nodes = (node(1), node(2))
    assert chosen(*nodes) == [("eth1", "10.0.0.1"), ("eth1", "10.0.0.2")]
    assert [line.describe() for line in explain_network(links(nodes))] == [
        "network: eth1 on node1, node2 (route to the other nodes)"
    ]


def test_facts_of_older_records_have_no_route() -> None:
    nodes = (node(1, route=""), node(2, route=""))
    assert chosen(*nodes) == [("eth1", "10.0.0.1"), ("eth1", "10.0.0.2")]
    assert "has the node's address" in explain_network(links(nodes))[0].reason


def test_an_address_that_is_translated_on_the_way() -> None:
    nodes = (node(1, address="203.0.113.1"), node(2))
    assert chosen(*nodes) == [("eth1", "10.0.0.1"), ("eth1", "10.0.0.2")]
    assert "which use another address" in links(nodes)[0].reason


def test_only_the_routes_to_the_chosen_nodes_count() -> None:
    nodes = (node(1, node9="eth0"), node(2))
    assert links(nodes)[0].reason == "route to the other nodes"
    nodes = (node(1, node2="eth0"), node(2))
    assert chosen(*nodes)[0] == ("eth1", "10.0.0.1")
    assert "packets to some nodes leave through eth0" in links(nodes)[0].reason


def test_two_ways_and_no_address_are_refused() -> None:
    nodes = (node(1, address="203.0.113.1", node2="eth0"), node(2), node(3))
    with pytest.raises(PlanError, match="reaches the other nodes through eth0 and eth1") as caught:
        links(nodes)
    assert "orch_address" in caught.value.hint


@pytest.mark.parametrize(
    ("address", "words"), [("172.17.0.1", "have the same address, 172.17.0.1"), ("127.0.0.1", "same address")]
)
def test_an_address_of_every_node_is_refused(address: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        links((node(1, address=address, route=""), node(2, address=address, route="")))


def test_a_loopback_address_among_others_is_refused() -> None:
    with pytest.raises(PlanError, match="loopback address"):
        links((node(1, address="127.0.0.1", route=""), node(2)))


def test_hydra_starts_all_proxies_from_node0_where_interfaces_have_other_names() -> None:
    def renamed(index: int) -> Node:
        original = node(index)
        interfaces = {"lo": ("127.0.0.1",), "ens5": (f"10.0.0.{index}",)}
        return replace(original, facts=replace(original.facts, interfaces=interfaces, route="ens5"))

    for last, expected in ((node(20), None), (renamed(20), "20")):
        nodes = (*(node(index) for index in range(1, 20)), last)
        launch = LAUNCHERS["mpirun"](make_job(nodes, ppn=1))
        assert dict(launch.command.env).get("I_MPI_HYDRA_BRANCH_COUNT") == expected
