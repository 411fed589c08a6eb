"""Problems that prevent provisioning, found in the nodes' probes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.load.clusters import Limits
from orchestrator.model.cluster import GIB
from orchestrator.model.decision import Finding
from orchestrator.model.hosts import fold
from orchestrator.provisioning.probe import PREFLIGHT, Probe
from orchestrator.stacks.stack import Stack

# Characters that MPI's launchers and ssh's remote shell do not accept in a path.
FORBIDDEN_IN_ROOT = frozenset(" \t\n:;&|<>()$`\\\"'*?[]{}#~!")
Problem = tuple[str, Mapping[str, object]]  # a key of preflight.toml, and the values in its texts
NO_VALUES: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node of the inventory, and its record of an earlier provisioning."""

    port: int  # of sshd, for the other nodes
    verified: Mapping[str, str]
    proved: Mapping[str, Any] = field(default_factory=dict)  # results of the fabric checks
    may_become: bool = False  # its sudo password is known
    limits: Limits = field(default_factory=Limits)


def missing_packages(probe: Probe) -> dict[str, str]:
    """Return the programs and libraries that a node lacks, each with its package."""
    packages = {name: PREFLIGHT["packages"][name][probe.family or "rhel"] for name in probe.missing}
    return {name: package for name, package in packages.items() if package}


def find_problems(probes: tuple[Probe, ...], stack: Stack, hosts: Mapping[str, Host]) -> tuple[Finding, ...]:
    """Return all problems of single nodes and of connections between them.

    Args:
        probes: of all nodes that were reached.
        stack: to install.
        hosts: all nodes of the inventory, by their names.
    """
    names, roots = {probe.name for probe in probes}, {probe.root for probe in probes}
    return tuple(
        describe_problem(probe, problem)
        for probe in probes
        for problem in (
            *machine_problems(probe, hosts[probe.name].limits),
            *package_problems(probe, hosts[probe.name]),
            *shared_folder_problems(probe, stack),
            *[("roots", NO_VALUES)] * (len(roots) > 1),
            *connection_problems(probe, hosts[probe.name], names),
        )
    )


def describe_problem(probe: Probe, problem: Problem) -> Finding:
    """Return a problem of a node with its message and its hint."""
    name, values = problem
    texts = PREFLIGHT["problems"][name].items()
    return Finding(subject=probe.name, **{field: text.format(probe=probe, **values) for field, text in texts})


def machine_problems(probe: Probe, limits: Limits) -> Iterator[Problem]:
    """Yield problems of the hardware and the clock."""
    facts = probe.facts
    # A node with an installed stack needs space for repairs only.
    disk = limits.disk_gb * GIB / (5 if facts.packages else 1)
    if probe.disk_free < disk:
        yield "disk", {"free": probe.disk_free / GIB, "needed": disk / GIB}
    if facts.memory_bytes < limits.memory_gb * GIB:
        yield "memory", {"memory": facts.memory_bytes / GIB, "needed": limits.memory_gb}
    if facts.shm_bytes < limits.shm_gb * GIB:
        yield "shm", {"free": facts.shm_bytes >> 20, "needed": int(limits.shm_gb * 1024)}
    if "avx2" not in facts.flags:
        yield "cpu", NO_VALUES
    if abs(probe.skew) > limits.skew_seconds:
        yield "clock", NO_VALUES


def package_problems(probe: Probe, host: Host) -> Iterator[Problem]:
    """Yield a problem if packages are missing that cannot be installed."""
    packages = missing_packages(probe)
    names = ", ".join(packages)
    if packages and not probe.family:
        yield "unknown_packages", {"names": names}
    elif packages and not (probe.sudo or host.may_become):
        tool = "apt-get" if probe.family == "debian" else "dnf"
        yield "packages", {"names": names, "tool": tool, "packages": " ".join(packages.values())}


def shared_folder_problems(probe: Probe, stack: Stack) -> Iterator[Problem]:
    """Yield the problems of any host with its software and the folder of orch, also if it does not train."""
    if not probe.libc:
        yield "libc", NO_VALUES
    version = ".".join(map(str, probe.python))
    if not stack.runs_on_python(version):
        install = "Install another Python (dnf install python3.11), set" if probe.family == "rhel" else "Set"
        yield "python", {"version": version, "stack": stack, "install": install}
    if characters := sorted(FORBIDDEN_IN_ROOT & set(probe.root)):
        yield "root_name", {"characters": " ".join(map(repr, characters))}
    if not probe.writable:
        yield "root_rights", NO_VALUES
    if probe.noexec:
        yield "noexec", NO_VALUES


def connection_problems(probe: Probe, host: Host, nodes: Collection[str]) -> Iterator[Problem]:
    """Yield the problems of a node with the addresses and names of the others that were reached."""
    may_be_root = probe.sudo or host.may_become
    peers = {name: peer for name, peer in probe.peers.items() if name in nodes}
    if unresolved := [name for name, peer in peers.items() if not peer.address]:
        yield "unresolved_peers", {"names": fold(unresolved)}
    for name, peer in peers.items():
        values = {"name": name, "address": peer.address, "error": peer.error}
        if name in unresolved:
            continue
        if peer.error:
            yield "unreachable_peer", values
        elif is_loopback(peer.address) and len(nodes) > 1:
            yield "loopback_peer", values
        elif not may_be_root and (peer.address not in peer.resolves or any(map(is_loopback, peer.resolves))):
            # Without root rights /etc/hosts cannot be corrected.
            yield "peer_name", {**values, "resolves": ", ".join(peer.resolves) or "nothing"}


def is_loopback(address: str) -> bool:
    """Return whether packets to this address stay on the machine."""
    return address.startswith("127.") or address == "::1"
