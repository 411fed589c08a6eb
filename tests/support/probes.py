"""Probes of nodes, as provisioning reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.model.limits import GIB
from orchestrator.provisioning.probe import Peer, Probe

ADDRESSES = {"node0": "10.0.0.1", "node1": "10.0.0.2"}


def make_peer(name: str, **changes: Any) -> Peer:
    """Return a node as another one sees it."""
    address = ADDRESSES[name]
    peer = Peer(address=address, source="10.0.0.9", resolves=(address,), error="")
    return replace(peer, **changes)


def make_probe(name: str = "node0", **changes: Any) -> Probe:
    """Return the probe of a node without problems."""
    facts = {
        "hostname": name,
        "packages": {},
        "memory_bytes": 8 * GIB,
        "shm_bytes": GIB,
        "flags": ["avx2", "avx512f", "avx512_bf16"],
        "cpu_model": "a model",
        "interfaces": {"lo": ["127.0.0.1"], "eth1": [ADDRESSES[name]]},
    }
    probe = Probe(
        name=name,
        user="trainer",
        uid=1000,
        home="/home/trainer",
        root="/home/trainer/orch",
        machine="x86_64",
        python=(3, 11, 2),
        python_path="/usr/bin/python3",
        libc="2.36",
        family="debian",
        sudo=True,
        writable=True,
        disk_free=50 * GIB,
        missing=(),
        host_keys=("ssh-ed25519 AAAA" + name,),
        hosts_file="127.0.0.1 localhost\n",
        peers={peer: make_peer(peer) for peer in ADDRESSES},
        skew=0.0,
        facts=facts,
    )
    return replace(probe, **changes)


TWO_PROBES = (make_probe("node0"), make_probe("node1"))
