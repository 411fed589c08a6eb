"""Check names, addresses, keys and ranges of hosts, and choose the interface by which each reaches the others."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Node, links
from orchestrator.model.hosts import expand, fold, is_address, is_host_key, is_host_name, ranges
from orchestrator.planning.launchers import LAUNCHERS
from tests.conftest import make_facts, make_node, make_spec
from tests.support.node_responses import make_host_key
from tests.support.plans import make_remote_node


def test_host_key_is_a_type_and_a_key_of_it() -> None:
    for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256", "sk-ssh-ed25519@openssh.com"):
        assert is_host_key(make_host_key(kind))
    for line in (
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        "ssh-ed25519 not base64",
        make_host_key() + "\n* " + make_host_key(),
        make_host_key() + " comment",
        "ssh-rsa " + make_host_key().split()[1],
        "@cert-authority * " + make_host_key(),
        "é " + make_host_key(),
    ):
        assert not is_host_key(line)


@given(st.text() | st.binary().map(lambda blob: "ssh-ed25519 " + base64.b64encode(blob).decode()))
def test_valid_keys_names_and_addresses_have_no_spaces_or_line_breaks(text: str) -> None:
    if is_host_key(text):
        assert len(text.split()) == 2
    if is_host_name(text) or is_address(text):
        assert len(text.split()) == 1
        assert text[0] not in "-#@|"
    assert not any(is_host_key(text + end) for end in ("\n", " x", "\r"))
    assert not any(is_host_name(text + end) for end in ("\n", "\t", " x"))
    assert not any(is_address(text + end) for end in ("\n", "%", "%a\nb"))


def test_range_is_expanded_unless_it_is_a_pattern_of_ansible() -> None:
    for pattern, names in (
        ("node[8-10]", ["node8", "node9", "node10"]),
        ("node[08-10]", ["node08", "node09", "node10"]),
        ("rack[1:2]-a.lab", ["rack1-a.lab", "rack2-a.lab"]),
        ("rack[1-2]n[8-9]", ["rack1n8", "rack1n9", "rack2n8", "rack2n9"]),
        ("n[001,003-005]", ["n001", "n003", "n004", "n005"]),
        ("!n[1,3].lab", ["!n1.lab", "!n3.lab"]),
        ("node*", ["node*"]),
        ("~node[1-3]", ["~node[1-3]"]),
        ("web[0-1]", ["web[0-1]"]),
        ("node[abc]", ["node[abc]"]),
    ):
        assert expand(pattern, lambda name: name == "web") == names
    for pattern in ("node[3-1]", "node[1-99999999]"):
        with pytest.raises(ValueError, match="is descending or has more than 10000 hosts"):
            expand(pattern, lambda _: False)


def test_many_names_are_folded_and_few_are_listed() -> None:
    assert fold(["node0", "node1"]) == "node0, node1"
    assert fold([*(f"node{number}" for number in range(9)), "gpu", "node11"]) == "node[0-8],gpu,node11"
    numbers = (*range(1, 18, 2), 18, 20)
    assert fold([f"n{number:03}" for number in numbers]) == "n[001,003,005,007,009,011,013,015,017-018,020]"


@given(st.lists(st.from_regex(r"[ab]{1,2}[0-9]{1,3}(\.lab[0-2]{1,2})?", fullmatch=True), unique=True))
def test_folded_names_expand_to_the_same_names(names: list[str]) -> None:
    assert [name for text in ranges(tuple(names)) for name in expand(text, lambda _: False)] == names


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
