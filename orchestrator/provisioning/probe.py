"""What the preflight saw of each node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrator.load.facts import NodeFacts, checked
from orchestrator.load.node_values import (
    Address,
    Count,
    FromNode,
    Host,
    HostKey,
    Line,
    NodePath,
    Number,
    Text,
    Token,
    User,
)

# What the module looks for, in its own words.
Missable = Literal[
    "ssh", "dockerd", "libhwloc.so.15", "libtcmalloc_minimal.so.4", "libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1"
]


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


class PeerAnswer(FromNode):
    address: Address | Literal[""]
    source: Address | Literal[""]
    resolves: list[Address]
    error: Line


class Release(FromNode):
    """ID and ID_LIKE of os-release(5)."""

    id: Token | Literal[""]
    like: Line


class ProbeAnswer(FromNode):
    """What the module orch_probe returns; the fields mean what Probe says."""

    user: User
    uid: Count
    home: NodePath
    root: NodePath
    machine: Token
    python: Annotated[list[Number], Field(min_length=3, max_length=3)]
    python_path: NodePath
    libc: Annotated[str, Field(pattern=r"^(?:[0-9]{1,3}[.][0-9]{1,3})?$")]
    os: Release
    sudo: bool
    disk_free: Count
    writable: bool
    missing: list[Missable]
    docker: bool
    systemd: bool
    host_keys: list[HostKey]
    hosts_file: Text
    peers: dict[Host, PeerAnswer]
    facts: NodeFacts
    time: float


def parse(name: str, record: object) -> ProbeAnswer:
    """The result of the module orch_probe. Raises NotWhatANodeSays."""
    return checked(ProbeAnswer, record, f"{name} does not say what a node says")


def probe_of(name: str, answer: ProbeAnswer, skew: float) -> Probe:
    debian = "debian" in (answer.os.id, *answer.os.like.split())
    major, minor, micro = answer.python
    return Probe(
        name=name,
        user=answer.user,
        uid=answer.uid,
        home=answer.home,
        root=answer.root,
        machine=answer.machine,
        python=(major, minor, micro),
        python_path=answer.python_path,
        libc=answer.libc,
        family="debian" if debian else answer.os.id,
        sudo=answer.sudo,
        writable=answer.writable,
        disk_free=answer.disk_free,
        missing=tuple(answer.missing),
        host_keys=tuple(answer.host_keys),
        hosts_file=answer.hosts_file,
        peers={peer: peer_of(seen) for peer, seen in answer.peers.items()},
        skew=skew,
        facts=answer.facts.model_dump(mode="json", by_alias=True),
        docker=answer.docker,
        systemd=answer.systemd,
    )


def peer_of(seen: PeerAnswer) -> Peer:
    return Peer(address=seen.address, source=seen.source, resolves=tuple(seen.resolves), error=seen.error)
