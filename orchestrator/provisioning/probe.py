"""Results that each node reports: of the preflight, and of the role `fabric`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrator.files import short_digest, tomllib
from orchestrator.load import records
from orchestrator.model import facts
from orchestrator.model.facts import Facts
from orchestrator.model.packages import Platform

PREFLIGHT: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("preflight.toml").read_text())
Missable = Annotated[str, facts.satisfies(PREFLIGHT["packages"].__contains__, "program or library")]
# Distributions whose packages orch knows; "" for others.
Family = Literal["debian", "rhel", ""]
FABRIC_TASK = "Check the fabrics"  # of the role `fabric`


class Peer(records.FromNode):
    """Another node, as seen from one node."""

    address: facts.Address | Literal[""]
    source: facts.Address | Literal[""]  # from which packets to the peer leave
    resolves: list[facts.Address]  # of the peer's name
    error: facts.Line  # why its sshd does not respond, empty if it does


class Release(records.FromNode):
    """The fields ID and ID_LIKE of os-release(5)."""

    id: facts.Token | Literal[""]
    like: facts.Line


class Probe(records.FromNode):
    """The result of the module orch_probe: the state of a node before provisioning.

    Attributes:
        name: of the node in the inventory.
        skew: seconds by which its clock differs from the controller's.
    """

    user: facts.User
    uid: facts.Count
    root: facts.NodePath  # folder of orch
    machine: facts.Token  # platform.machine()
    python: Annotated[list[facts.Number], Field(min_length=3, max_length=3)]  # version
    python_path: facts.NodePath
    libc: facts.LibcVersion  # version of glibc, empty for another C library
    os: Release
    sudo: bool  # without a password
    disk_free: facts.Count  # bytes
    writable: bool  # root
    noexec: bool  # the file system of root
    missing: list[Missable]  # programs and libraries
    host_keys: list[facts.HostKey]
    hosts_file: facts.Text  # text of /etc/hosts
    peers: dict[facts.Host, Peer]
    facts: Facts
    time: float
    name: str = ""  # this and the next field are not the node's: parse_probe() and the session set them
    skew: float = 0.0

    @property
    def family(self) -> Family:
        """Return the family of the distribution: Ubuntu is like Debian, Rocky Linux and Fedora are like RHEL."""
        names = {self.os.id, *self.os.like.split()}
        if "debian" in names:
            return "debian"
        return "rhel" if names & {"rhel", "fedora"} else ""

    @property
    def platform(self) -> Platform:
        major, minor, _ = self.python
        return Platform(python=f"{major}.{minor}", machine=self.machine, libc=self.libc)


def parse_probe(name: str, result: object) -> Probe:
    """Return the checked result of the module orch_probe on a node, without its skew.

    Raises:
        InvalidResponse: if a field is missing or invalid.
    """
    parsed = records.validate(Probe, result, f"{name} returned an invalid probe")
    return parsed.model_copy(update={"name": name, "skew": 0.0})


class FabricResults(records.FromNode):
    """The output of `node.py check-fabric`."""

    key: facts.Digest  # of what was checked
    nodes: dict[facts.Host, dict[facts.Token, facts.ReportedProof]]  # node -> fabric -> result


def parse_fabrics(name: str, result: Mapping[str, Any]) -> FabricResults:
    """Return the results that a node reports.

    Raises:
        InvalidResponse: if the output of the command is not what `node.py check-fabric` prints.
    """
    problem = f"{name} returned invalid results of the fabric checks"
    try:
        output = json.loads(str(result.get("stdout", "")))
    except (ValueError, RecursionError):
        raise records.InvalidResponse(problem) from None
    return records.validate(FabricResults, output, problem)


def fabric_checks_version(share: Path) -> str:
    """Return a digest of everything that decides the results; when it changes, the checks run again.

    Args:
        share: the folder with train/ and playbooks/.
    """
    lib = share / "train" / "lib"
    programs = [share / "train" / "node.py", lib / "orch_node" / "fabric.py"]
    finder = ModuleFinder([str(lib)])
    for program in programs:
        finder.run_script(str(program))
    imported = [getattr(module, "__file__", None) for module in finder.modules.values()]
    role = share / "playbooks" / "roles" / "fabric"
    return short_digest(sorted({*programs, *(Path(file) for file in imported if file), *role.glob("*/*.yml")}), share)
