"""Check what is planned for the nodes of a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator import load
from orchestrator.provisioning.plan import find_routes, plan_provision
from orchestrator.provisioning.preflight import Host
from orchestrator.provisioning.probe import Probe
from tests.support.probes import ADDRESSES, TWO_PROBES, make_peer, make_probe

STACK = load.stack("current")


def make_plan(*probes: Probe, port: int = 22) -> Any:
    return plan_provision(STACK, {name: Host(port=port, verified={}) for name in ADDRESSES}, probes)


def test_known_hosts_contains_the_port() -> None:
    assert make_plan(*TWO_PROBES).trust["known_hosts"].splitlines()[0] == "node0,10.0.0.1 ssh-ed25519 AAAAnode0"
    ported = make_plan(*TWO_PROBES, port=2222).trust["known_hosts"].splitlines()
    assert ported[1] == "[node1]:2222,[10.0.0.2]:2222 ssh-ed25519 AAAAnode1"


def test_record_contains_the_interface_of_the_address_and_the_routes_to_the_other_nodes() -> None:
    record = make_plan(*TWO_PROBES).variables["orch_nodes"]["node1"]["record"]
    assert (record["address"], record["interface"]) == ("10.0.0.2", "eth1")
    assert (record["root"], record["stack"]) == ("/home/trainer/orch", "current")
    interfaces = {"eth0": ["192.0.2.1"], "eth1": ["10.0.0.1"]}
    sources = {"node1": "192.0.2.1", "node2": "10.0.0.1", "node3": "10.0.0.1"}
    peers = {name: make_peer("node1", source=source) for name, source in sources.items()}
    facts = replace(make_probe().facts, interfaces=interfaces)
    probe = make_probe(peers={"node0": make_peer("node0"), **peers}, facts=facts)
    assert find_routes(probe) == ("eth1", {"node1": "eth0"})
    assert find_routes(make_probe(peers={}, facts=facts)) == ("", {})
