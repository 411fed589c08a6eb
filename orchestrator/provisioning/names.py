"""The names and host keys of nodes as files: /etc/hosts, known_hosts, ssh's configuration. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from orchestrator.model.host_names import is_address
from orchestrator.provisioning.preflight import is_loopback
from orchestrator.provisioning.probe import Probe

NO_MASK = "# Written by orch provision. Only for ssh between the nodes of this cluster."


def names(probes: tuple[Probe, ...], seen: Mapping[str, str]) -> list[dict[str, Any]]:
    """Lines of /etc/hosts: the inventory's name, and the machine's own where it is another."""
    own = own_names(probes)
    return [{"address": seen[probe.name], "names": own[probe.name]} for probe in probes]


def own_names(probes: tuple[Probe, ...]) -> dict[str, list[str]]:
    """Node -> its names. A node's word on its own name counts as far as no other has that name: it
    is written on all nodes, and would lead the others' connections to it."""
    claims = Counter(probe.facts["hostname"].lower() for probe in probes)
    taken = {probe.name.lower() for probe in probes}
    found = {}
    for probe in probes:
        own = probe.facts["hostname"]
        free = claims[own.lower()] == 1 and own.lower() not in taken
        local = own.lower().partition(".")[0] == "localhost" or is_address(own)
        found[probe.name] = [probe.name, own] if free and not local else [probe.name]
    return found


def has_names(probe: Probe, wanted: list[dict[str, Any]]) -> bool:
    """Whether /etc/hosts says all of this, and says of no such name that it is a loopback."""
    lines = [line.partition("#")[0].split() for line in probe.hosts_file.splitlines()]
    ours = {name for node in wanted for name in node["names"]}
    local = {name for words in lines if words and is_loopback(words[0]) for name in words[1:]}
    return not ours & local and all([n["address"], *n["names"]] in lines for n in wanted)


def known_hosts(
    probes: tuple[Probe, ...], seen: Mapping[str, str], ports: Mapping[str, int]
) -> str:
    """The host keys of all nodes, read over connections that were verified already."""
    return "".join(
        f"{','.join(marked(name, ports[probe.name]) for name in (probe.name, seen[probe.name]))}"
        f" {key}\n"
        for probe in probes
        for key in probe.host_keys
    )


def marked(name: str, port: int) -> str:
    """A host as known_hosts names it, sshd(8)."""
    return name if port == 22 else f"[{name}]:{port}"


def ssh_config(
    probes: tuple[Probe, ...], seen: Mapping[str, str], ports: Mapping[str, int], root: str
) -> str:
    """How a node reaches the others: ours alone, whatever the user's own configuration says."""
    own = own_names(probes)
    each = [
        f"Host {' '.join([probe.name, seen[probe.name], *own[probe.name][1:]])}\n"
        f"    HostName {seen[probe.name]}\n    Port {ports[probe.name]}\n    User {probe.user}\n"
        for probe in probes
    ]
    return "\n".join(
        [
            NO_MASK,
            *each,
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
