"""What was asked and what the preflight saw -> everything that provisioning will do. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.model.decision import Decision
from orchestrator.model.limits import Limits
from orchestrator.provisioning.names import has_names, known_hosts, names, ssh_config
from orchestrator.provisioning.preflight import Problem, packages, problems
from orchestrator.provisioning.probe import Probe
from orchestrator.stacks.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionRequest:
    """The flags of the command line. `index`: install from uv's index instead of pushed wheels;
    `docker_load`: the file of an image."""

    inventory: str
    stack: str = "current"
    check: bool = False
    index: bool = False
    verify: bool = False
    data: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    may_become: bool = False
    docker_load: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node of the inventory, as the other nodes reach it, and what was recorded about it.

    `proved`: its fabrics; `may_become`: Ansible is told a sudo password for it.
    """

    name: str
    port: int
    verified: Mapping[str, str]
    proved: Mapping[str, Any] = field(default_factory=dict)
    may_become: bool = False
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What decides which wheels fit: CPython's version, the machine, glibc's version."""

    python: str
    machine: str
    libc: str

    @property
    def key(self) -> str:
        return f"cp{self.python.replace('.', '')}-{self.machine}-glibc{self.libc}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionPlan:
    """`variables` go to the playbook; `trust`: file name -> content, beside the key pair."""

    problems: tuple[Problem, ...]
    decisions: tuple[Decision, ...]
    platforms: tuple[Platform, ...]
    trust: Mapping[str, str]
    variables: Mapping[str, Any]
    missing: Mapping[str, tuple[str, ...]]


def plan_provision(
    request: ProvisionRequest, *, cluster: str, stack: Stack, hosts: tuple[Host, ...], probes: tuple[Probe, ...]
) -> ProvisionPlan:
    """Decide what to do with the nodes that were reached, of all `hosts`."""
    root = probes[0].root
    by_name = {host.name: host for host in hosts}
    ports = {host.name: host.port for host in hosts}
    seen = {host.name: address_of(host.name, probes) for host in hosts}
    known = names(probes, seen)
    return ProvisionPlan(
        problems=problems(
            probes,
            stack,
            limits={host.name: host.limits for host in hosts},
            becoming={host.name for host in hosts if host.may_become or request.may_become},
        ),
        decisions=tuple(decisions(stack, probes, root)),
        platforms=tuple(dict.fromkeys(platform_of(probe) for probe in probes)),
        trust={"known_hosts": known_hosts(probes, seen, ports), "config": ssh_config(probes, seen, ports, root)},
        variables={
            "orch_root": root,
            "orch_cluster": cluster,
            "orch_stack": stack.name,
            "orch_backend": stack.backends[0],
            "orch_verify": request.verify,
            "orch_names": known,
            "orch_nodes": {
                probe.name: {
                    **node_variables(
                        probe,
                        by_name[probe.name],
                        address=seen[probe.name],
                        stack=stack.name,
                        may_become=request.may_become,
                    ),
                    "names_due": not has_names(probe, known),
                }
                for probe in probes
            },
        },
        missing={probe.name: packages(probe) for probe in probes},
    )


def platform_of(probe: Probe) -> Platform:
    major, minor, _ = probe.python
    return Platform(python=f"{major}.{minor}", machine=probe.machine, libc=probe.libc)


def address_of(name: str, probes: tuple[Probe, ...]) -> str:
    """The address at which the nodes reach one another; alone, a node reaches itself. One that the
    node has itself comes first: no other node's word sends its peers elsewhere."""
    seen = [probe.peers[name].address for probe in probes if name in probe.peers]
    found = [address for address in seen if address]
    own = {probe.name: probe for probe in probes}.get(name)
    its = [address for address in found if own and interface_with(address, own)]
    return next(iter((*its, *found)), "127.0.0.1")


def node_variables(probe: Probe, host: Host, *, address: str, stack: str, may_become: bool) -> dict[str, Any]:
    """What the roles must know of one node; `record` joins its recorded facts."""
    route, detours = routes(probe)
    prefix = f"{probe.root}/stacks/{stack}"
    return {
        "missing": list(packages(probe)),
        "family": probe.family,
        "become": probe.uid != 0,
        "sudo": probe.sudo or host.may_become or may_become,
        "docker": probe.docker,
        "systemd": probe.systemd,
        "python": probe.python_path,
        "wheelhouse": platform_of(probe).key,
        "verified": dict(host.verified),
        "record": {
            **probe.facts,
            "root": probe.root,
            "stack": stack,
            "venv": prefix,
            "user": probe.user,
            "port": host.port,
            "address": address,
            "interface": interface_with(address, probe) or route or "lo",
            "route": route,
            "detours": detours,
            "host_keys": list(probe.host_keys),
            "proved": dict(host.proved),
        },
    }


def interface_with(address: str, probe: Probe) -> str | None:
    interfaces: Mapping[str, list[str]] = probe.facts["interfaces"]
    return next((name for name, found in interfaces.items() if address in found), None)


def routes(probe: Probe) -> tuple[str, dict[str, str]]:
    """The interface that packets to most peers leave by, and the peers that have another one."""
    by_peer = {
        name: interface
        for name, peer in probe.peers.items()
        if name != probe.name and (interface := interface_with(peer.source, probe))
    }
    if not by_peer:
        return "", {}
    most = Counter(by_peer.values()).most_common(1)[0][0]
    return most, {name: interface for name, interface in by_peer.items() if interface != most}


def decisions(stack: Stack, probes: tuple[Probe, ...], root: str) -> list[Decision]:
    places = {platform_of(probe).key for probe in probes}
    bf16 = {flag for flag in ("amx_bf16", "avx512_bf16") for p in probes if flag in p.facts["flags"]}
    return [
        Decision(topic="stack", value=stack.name, reason=stack.summary),
        Decision(topic="root", value=root, reason=f"of {probes[0].user}"),
        Decision(topic="platform", value=", ".join(sorted(places))),
        Decision(topic="bf16", value=", ".join(sorted(bf16)) or "no instructions for it"),
    ]
