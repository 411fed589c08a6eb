"""Results that each node reports: of the preflight, and of the role `fabric`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrator.files import short_digest
from orchestrator.load.records import (
    Address,
    Count,
    Digest,
    FromNode,
    Host,
    HostKey,
    InvalidResponse,
    LibcVersion,
    Line,
    NodeFacts,
    NodePath,
    NodeRecord,
    Number,
    ProofFacts,
    Text,
    Token,
    User,
    Verified,
    render_record,
    validate,
)

# Programs and libraries that the module orch_probe looks for.
Missable = Literal[
    "ssh", "libhwloc.so.15", "libtcmalloc_minimal.so.4", "libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1"
]


# Distributions whose packages orch knows; "" for others.
Family = Literal["debian", "rhel", ""]
FABRIC_TASK = "Check the fabrics"  # of the role `fabric`


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another node, as seen from one node."""

    address: str
    source: str  # address from which packets to the peer leave
    resolves: tuple[str, ...]  # addresses of the peer's name
    error: str  # why its sshd does not respond, empty if it does


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The state of one node before provisioning."""

    name: str
    user: str
    uid: int
    home: str
    root: str  # folder of orch
    machine: str  # platform.machine()
    python: tuple[int, int, int]  # version
    python_path: str
    libc: str  # version of glibc, empty for another C library
    family: Family
    sudo: bool  # without a password
    writable: bool  # root
    disk_free: int  # bytes
    missing: tuple[str, ...]  # programs and libraries
    host_keys: tuple[str, ...]
    hosts_file: str  # text of /etc/hosts
    peers: Mapping[str, Peer]
    skew: float  # seconds by which its clock differs from the controller's
    facts: Mapping[str, Any]  # output of facts.py


class PeerResult(FromNode):
    """A peer in the result of the module."""

    address: Address | Literal[""]
    source: Address | Literal[""]
    resolves: list[Address]
    error: Line


class Release(FromNode):
    """The fields ID and ID_LIKE of os-release(5)."""

    id: Token | Literal[""]
    like: Line


class ProbeResult(FromNode):
    """The result of the module orch_probe, with the fields of Probe."""

    user: User
    uid: Count
    home: NodePath
    root: NodePath
    machine: Token
    python: Annotated[list[Number], Field(min_length=3, max_length=3)]
    python_path: NodePath
    libc: LibcVersion
    os: Release
    sudo: bool
    disk_free: Count
    writable: bool
    missing: list[Missable]
    host_keys: list[HostKey]
    hosts_file: Text
    peers: dict[Host, PeerResult]
    facts: NodeFacts
    time: float


def parse_result(name: str, result: object) -> ProbeResult:
    """Return the checked result of the module orch_probe.

    Raises:
        InvalidResponse: if a field is missing or invalid.
    """
    return validate(ProbeResult, result, f"{name} returned an invalid probe")


def make_probe(name: str, result: ProbeResult, skew: float) -> Probe:
    """Return the probe of a node.

    Args:
        name: of the node in the inventory.
        result: of the module.
        skew: seconds by which its clock differs from the controller's.
    """
    major, minor, micro = result.python
    return Probe(
        name=name,
        user=result.user,
        uid=result.uid,
        home=result.home,
        root=result.root,
        machine=result.machine,
        python=(major, minor, micro),
        python_path=result.python_path,
        libc=result.libc,
        family=family_of(result.os),
        sudo=result.sudo,
        writable=result.writable,
        disk_free=result.disk_free,
        missing=tuple(result.missing),
        host_keys=tuple(result.host_keys),
        hosts_file=result.hosts_file,
        peers={
            peer: Peer(address=p.address, source=p.source, resolves=tuple(p.resolves), error=p.error)
            for peer, p in result.peers.items()
        },
        skew=skew,
        facts=result.facts.model_dump(mode="json", by_alias=True),
    )


def family_of(release: Release) -> Family:
    """Return the family of a distribution: Ubuntu is like Debian, Rocky Linux and Fedora are like RHEL."""
    names = {release.id, *release.like.split()}
    if "debian" in names:
        return "debian"
    return "rhel" if names & {"rhel", "fedora"} else ""


class FabricResults(FromNode):
    """The output of `node.py check-fabric`."""

    key: Digest  # of what was checked
    nodes: dict[Host, dict[Token, ProofFacts]]  # node -> fabric -> result


def parse_fabrics(name: str, result: Mapping[str, Any]) -> FabricResults:
    """Return the results that a node reports.

    Raises:
        InvalidResponse: if the output of the command is not what `node.py check-fabric` prints.
    """
    problem = f"{name} returned invalid results of the fabric checks"
    try:
        output = json.loads(str(result.get("stdout", "")))
    except (ValueError, RecursionError):
        raise InvalidResponse(problem) from None
    return validate(FabricResults, output, problem)


def record_with_results(record: NodeRecord, results: Mapping[str, ProofFacts], key: str) -> str:
    """Return the text of a node's record with its results."""
    verified = (record.verified or Verified()).model_copy(update={"fabrics": key})
    return render_record(record.model_copy(update={"proved": dict(results), "verified": verified}))


def fabric_checks_version(share: Path) -> str:
    """Return a digest of everything that decides the results; when it changes, the checks run again.

    Args:
        share: the folder with train/ and playbooks/.
    """
    lib = share / "train" / "lib"
    programs = [share / "train" / "node.py", *(lib / "orch_node" / "fabric").glob("*.py")]
    finder = ModuleFinder([str(lib)])
    for program in programs:
        finder.run_script(str(program))
    imported = [getattr(module, "__file__", None) for module in finder.modules.values()]
    role = share / "playbooks" / "roles" / "fabric"
    return short_digest(sorted({*programs, *(Path(file) for file in imported if file), *role.glob("*/*.yml")}), share)
