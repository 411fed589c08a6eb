"""Results that each node reports: of the preflight, and of the role `fabric`."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    NodePath,
    NodeRecord,
    Number,
    ProofFacts,
    RawFacts,
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


class Peer(FromNode):
    """Another node, as seen from one node."""

    address: Address | Literal[""]
    source: Address | Literal[""]  # from which packets to the peer leave
    resolves: list[Address]  # of the peer's name
    error: Line  # why its sshd does not respond, empty if it does


class Release(FromNode):
    """The fields ID and ID_LIKE of os-release(5)."""

    id: Token | Literal[""]
    like: Line


class ProbeResult(FromNode):
    """The result of the module orch_probe: the state of a node before provisioning."""

    user: User
    uid: Count
    root: NodePath  # folder of orch
    machine: Token  # platform.machine()
    python: Annotated[list[Number], Field(min_length=3, max_length=3)]  # version
    python_path: NodePath
    libc: LibcVersion  # version of glibc, empty for another C library
    os: Release
    sudo: bool  # without a password
    disk_free: Count  # bytes
    writable: bool  # root
    noexec: bool  # the file system of root
    missing: list[Missable]  # programs and libraries
    host_keys: list[HostKey]
    hosts_file: Text  # text of /etc/hosts
    peers: dict[Host, Peer]
    facts: RawFacts
    time: float

    @property
    def family(self) -> Family:
        """Return the family of the distribution: Ubuntu is like Debian, Rocky Linux and Fedora are like RHEL."""
        names = {self.os.id, *self.os.like.split()}
        if "debian" in names:
            return "debian"
        return "rhel" if names & {"rhel", "fedora"} else ""


class Probe(ProbeResult):
    """The state of a node, with what the node does not report itself.

    Attributes:
        name: of the node in the inventory.
        skew: seconds by which its clock differs from the controller's.
    """

    name: str
    skew: float


def parse_result(name: str, result: object) -> ProbeResult:
    """Return the checked result of the module orch_probe.

    Raises:
        InvalidResponse: if a field is missing or invalid.
    """
    return validate(ProbeResult, result, f"{name} returned an invalid probe")


def make_probe(name: str, result: ProbeResult, skew: float) -> Probe:
    """Return the probe of a node."""
    return Probe.model_construct(**dict(result), name=name, skew=skew)


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
