"""Contents of /etc/hosts, known_hosts and the ssh configuration on the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.model.host_names import is_address, known_host_name
from orchestrator.provisioning.preflight import is_loopback
from orchestrator.provisioning.probe import Probe

SSH_CONFIG_HEADER = "# Written by orch provision. Only for ssh between the nodes of this cluster."


def host_entries(probes: tuple[Probe, ...], addresses: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the entries of all nodes for /etc/hosts.

    They have the inventory's names only. The host name that a node reports could redirect the other nodes'
    connections to it. Addresses and localhost are omitted.
    """
    return [{"address": addresses[p.name], "names": [p.name]} for p in probes if is_host_name(p.name)]


def is_host_name(text: str) -> bool:
    """Return whether a name of the inventory may stand in /etc/hosts."""
    return text.lower().partition(".")[0] != "localhost" and not is_address(text)


def has_entries(probe: Probe, entries: list[dict[str, Any]]) -> bool:
    """Return whether /etc/hosts of a node has these entries, and no loopback address for their names."""
    lines = [line.partition("#")[0].split() for line in probe.hosts_file.splitlines()]
    names = {name for entry in entries for name in entry["names"]}
    loopback_names = {name for fields in lines if fields and is_loopback(fields[0]) for name in fields[1:]}
    return not names & loopback_names and all([e["address"], *e["names"]] in lines for e in entries)


def known_hosts(probes: tuple[Probe, ...], addresses: Mapping[str, str], ports: Mapping[str, int]) -> str:
    """Return known_hosts with the keys of all nodes, which were read over verified connections."""
    return "".join(
        f"{known_host_name(probe.name, port)},{known_host_name(addresses[probe.name], port)} {key}\n"
        for probe in probes
        for port in [ports[probe.name]]
        for key in probe.host_keys
    )


def ssh_config(probes: tuple[Probe, ...], addresses: Mapping[str, str], ports: Mapping[str, int], root: str) -> str:
    """Return the configuration with which a node connects to the others; it replaces the user's own."""
    hosts = [
        f"Host {probe.name} {addresses[probe.name]}\n"
        f"    HostName {addresses[probe.name]}\n    Port {ports[probe.name]}\n    User {probe.user}\n"
        for probe in probes
    ]
    return "\n".join(
        [
            SSH_CONFIG_HEADER,
            *hosts,
            "Host *",
            f'    IdentityFile "{root}/ssh/id_ed25519"',
            "    IdentitiesOnly yes",
            f'    UserKnownHostsFile "{root}/ssh/known_hosts"',
            "    GlobalKnownHostsFile /dev/null",
            "    StrictHostKeyChecking yes",
            "    UpdateHostKeys no",
            "    BatchMode yes",
            "    ConnectTimeout 10",
            "    ServerAliveInterval 5",
            "    ServerAliveCountMax 3",
            "",
        ]
    )
