"""Probes of nodes, as provisioning reads them."""

from __future__ import annotations

from typing import Any

from orchestrator.provisioning.probe import Peer, Probe, parse_probe
from tests.support.node_responses import make_probe_result, make_reported_facts

ADDRESSES = {"node0": "10.0.0.1", "node1": "10.0.0.2"}


def make_peer(name: str, **changes: Any) -> Peer:
    """Return a node as another one sees it."""
    address = ADDRESSES[name]
    return Peer(**{"address": address, "source": "10.0.0.9", "resolves": [address], "error": "", **changes})


def make_probe(name: str = "node0", **changes: Any) -> Probe:
    """Return the probe of a node without problems."""
    interfaces = {"lo": ["127.0.0.1"], "eth1": [ADDRESSES[name]]}
    flags = ["avx2", "avx512f", "avx512_bf16"]
    facts = make_reported_facts(hostname=name, packages={}, flags=flags, interfaces=interfaces)
    result = make_probe_result(facts=facts, missing=[])
    host_keys, peers = [f"ssh-ed25519 AAAA{name}"], {peer: make_peer(peer) for peer in ADDRESSES}
    return parse_probe(name, result).model_copy(update={"host_keys": host_keys, "peers": peers, **changes})


TWO_PROBES = (make_probe("node0"), make_probe("node1"))
