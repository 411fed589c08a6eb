"""What the preflight saw of each node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another node as one node sees it. `error` is empty if its sshd answered."""

    address: str
    source: str
    resolves: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One node. Sizes in bytes; `skew`: seconds that its clock is off; `facts`: of facts.py.

    `docker`: whether it shall have an engine; `systemd`: whether that can start it.
    """

    name: str
    user: str
    uid: int
    home: str
    root: str
    machine: str
    python: tuple[int, int, int]
    python_path: str
    libc: str
    family: str
    sudo: bool
    writable: bool
    disk_free: int
    missing: tuple[str, ...]
    host_keys: tuple[str, ...]
    hosts_file: str
    peers: Mapping[str, Peer]
    skew: float
    facts: Mapping[str, Any]
    docker: bool = False
    systemd: bool = False


def parse(name: str, record: Mapping[str, Any], skew: float) -> Probe:
    """The result of the module orch_probe, as a value."""
    family = record["os"]
    debian = "debian" in (family["id"], *family["like"].split())
    major, minor, micro = record["python"]
    return Probe(
        name=name,
        user=record["user"],
        uid=record["uid"],
        home=record["home"],
        root=record["root"],
        machine=record["machine"],
        python=(major, minor, micro),
        python_path=record["python_path"],
        libc=record["libc"],
        family="debian" if debian else family["id"],
        sudo=record["sudo"],
        writable=record["writable"],
        disk_free=record["disk_free"],
        missing=tuple(record["missing"]),
        host_keys=tuple(record["host_keys"]),
        hosts_file=record["hosts_file"],
        peers={peer: parse_peer(seen) for peer, seen in record["peers"].items()},
        skew=skew,
        facts=record["facts"],
        docker=record.get("docker", False),
        systemd=record.get("systemd", False),
    )


def parse_peer(seen: Mapping[str, Any]) -> Peer:
    return Peer(
        address=seen["address"],
        source=seen["source"],
        resolves=tuple(seen["resolves"]),
        error=seen["error"],
    )
