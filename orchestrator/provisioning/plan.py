"""Everything that provisioning will do, planned from the request and the results of the preflight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.load.records import dump
from orchestrator.model.decision import Decision, Finding
from orchestrator.provisioning.preflight import Host, find_problems, missing_packages
from orchestrator.provisioning.probe import Probe
from orchestrator.provisioning.ssh_settings import has_entries, host_entries, known_hosts, ssh_config
from orchestrator.stacks.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionRequest:
    """The options of `orch provision` and `orch sync`."""

    inventory: str
    stack: str = "current"
    dry_run: bool = False  # report differences, change nothing
    index: bool = False  # nodes install from an index instead of pushed wheels
    verify: bool = False  # verify again what was verified before
    models: tuple[str, ...] = ()  # names on a hub, URLs and paths of models
    data: tuple[str, ...] = ()  # the same of data sets
    find_links: tuple[str, ...] = ()  # folders of wheels
    may_become: bool = False  # the sudo password is known
    docker_load: str | None = None  # file of an image
    requirements: str | None = None  # file with the user's packages
    no_stack: bool = False  # install MPI alone: the ranks use an environment of the user's


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionPlan:
    """The actions and settings for all nodes."""

    problems: tuple[Finding, ...]  # if there are any, no node is changed
    decisions: tuple[Decision, ...]
    trust: Mapping[str, str]  # file name -> content, in the folder of the cluster's key pair
    variables: Mapping[str, Any]  # of the playbook


def plan_provision(stack: Stack, hosts: Mapping[str, Host], probes: tuple[Probe, ...]) -> ProvisionPlan:
    """Return the plan for the nodes that were reached.

    Args:
        stack: to install.
        hosts: all nodes of the inventory, by their names.
        probes: of the nodes that were reached.
    """
    ports = {name: host.port for name, host in hosts.items()}
    addresses = {name: find_address(name, probes) for name in hosts}
    entries = host_entries(probes, addresses)
    root = probes[0].root

    def variables_of(probe: Probe) -> dict[str, Any]:
        host = hosts[probe.name]
        return {
            "missing": list(missing_packages(probe).values()),
            "family": probe.family,
            "become": probe.uid != 0,
            "sudo": probe.sudo or host.may_become,
            "python": probe.python_path,
            "wheelhouse": probe.platform.key,
            "verified": dict(host.verified),
            "names_due": not has_entries(probe, entries),
            "record": node_record(probe, host, addresses[probe.name], stack.name),
        }

    return ProvisionPlan(
        problems=find_problems(probes, stack, hosts),
        decisions=tuple(describe_decisions(stack, probes)),
        trust={
            "known_hosts": known_hosts(probes, addresses, ports),
            "config": ssh_config(probes, addresses, ports, root),
        },
        variables={
            "orch_root": root,
            "orch_stack": stack.name,
            "orch_backend": stack.backends[0],
            "orch_names": entries,
            "orch_nodes": {probe.name: variables_of(probe) for probe in probes},
        },
    )


def find_address(name: str, probes: tuple[Probe, ...]) -> str:
    """Return the address at which the other nodes reach a node; for a single node the loopback address.

    Addresses of the node's interfaces come first, so that other nodes cannot redirect its peers.
    """
    peers = [probe.peers[name] for probe in probes if name in probe.peers]
    addresses = [peer.address for peer in peers if peer.address]
    node = {probe.name: probe for probe in probes}.get(name)
    confirmed = [address for address in addresses if node and find_interface(address, node)]
    return next(iter((*confirmed, *addresses)), "127.0.0.1")


def node_record(probe: Probe, host: Host, address: str, stack: str) -> dict[str, Any]:
    """Return what becomes part of the recorded facts of a node."""
    route, detours = find_routes(probe)
    return {
        **dump(probe.facts),
        "root": probe.root,
        "stack": stack,
        "user": probe.user,
        "address": address,
        "interface": find_interface(address, probe) or route or "lo",
        "route": route,
        "detours": detours,
        "proved": dict(host.proved),
    }


def find_interface(address: str, probe: Probe) -> str | None:
    """Return the interface of a node that has this address."""
    return next((name for name, addresses in probe.facts.interfaces.items() if address in addresses), None)


def find_routes(probe: Probe) -> tuple[str, dict[str, str]]:
    """Return the interface that leads to most peers, and the interfaces of the other peers."""
    interfaces = {name: find_interface(peer.source, probe) for name, peer in probe.peers.items() if name != probe.name}
    by_peer = {name: interface for name, interface in interfaces.items() if interface}
    if not by_peer:
        return "", {}
    most = Counter(by_peer.values()).most_common(1)[0][0]
    return most, {name: interface for name, interface in by_peer.items() if interface != most}


def describe_decisions(stack: Stack, probes: tuple[Probe, ...]) -> list[Decision]:
    """Return the decisions that are printed before the nodes are changed."""
    platforms = {probe.platform.key for probe in probes}
    bf16 = {flag for flag in ("amx_bf16", "avx512_bf16") for p in probes if flag in p.facts.flags}
    return [
        Decision(topic="stack", value=stack.name, reason=stack.summary),
        Decision(topic="root", value=probes[0].root, reason=f"of {probes[0].user}"),
        Decision(topic="platform", value=", ".join(sorted(platforms))),
        Decision(topic="bf16", value=", ".join(sorted(bf16)) or "no instructions"),
    ]
