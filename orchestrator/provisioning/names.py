"""The names and host keys of nodes as files: /etc/hosts, known_hosts, ssh's configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.model.host_names import is_address
from orchestrator.provisioning.preflight import is_loopback
from orchestrator.provisioning.probe import Probe

NO_MASK = "# Written by orch provision. Only for ssh between the nodes of this cluster."


def names(probes: tuple[Probe, ...], seen: Mapping[str, str]) -> list[dict[str, Any]]:
    """Lines of /etc/hosts of all nodes: the inventory's names, and no others. What a node calls
    itself is its own word, and would lead the others' connections to it; a name is no address, and
    localhost is every node itself."""
    return [{"address": seen[one.name], "names": [one.name]} for one in probes if is_name(one.name)]


def is_name(text: str) -> bool:
    return text.lower().partition(".")[0] != "localhost" and not is_address(text)


def has_names(probe: Probe, wanted: list[dict[str, Any]]) -> bool:
    """Whether /etc/hosts says all of this, and says of no such name that it is a loopback."""
    lines = [line.partition("#")[0].split() for line in probe.hosts_file.splitlines()]
    ours = {name for node in wanted for name in node["names"]}
    local = {name for words in lines if words and is_loopback(words[0]) for name in words[1:]}
    return not ours & local and all([n["address"], *n["names"]] in lines for n in wanted)


def known_hosts(probes: tuple[Probe, ...], seen: Mapping[str, str], ports: Mapping[str, int]) -> str:
    """The host keys of all nodes, read over connections that were verified already."""
    return "".join(
        f"{','.join(marked(name, ports[probe.name]) for name in (probe.name, seen[probe.name]))} {key}\n"
        for probe in probes
        for key in probe.host_keys
    )


def marked(name: str, port: int) -> str:
    """A host as known_hosts names it, sshd(8)."""
    return name if port == 22 else f"[{name}]:{port}"


def ssh_config(probes: tuple[Probe, ...], seen: Mapping[str, str], ports: Mapping[str, int], root: str) -> str:
    """How a node reaches the others: ours alone, whatever the user's own configuration says."""
    each = [
        f"Host {probe.name} {seen[probe.name]}\n"
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
