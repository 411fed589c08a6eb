"""How Ansible reaches the nodes, as an ssh configuration that OpenSSH and fabric read."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.errors import RequestError
from orchestrator.model.host_key_checks import HINT, unverified_arguments
from orchestrator.model.host_names import is_host


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
    """One node's connection variables, rendered by Ansible. `arguments`: ssh's own, as typed."""

    node: str
    host: str
    port: str = ""
    user: str = ""
    key: str = ""
    arguments: str = ""


def render(connections: Iterable[SshOptions]) -> str:
    """One `Host` block for each node. Raises RequestError for what it cannot carry."""
    return "".join(f"{block(connection)}\n" for connection in connections)


def block(connection: SshOptions) -> str:
    given = {
        "HostName": connection.host,
        "Port": connection.port,
        "User": connection.user,
        "IdentityFile": quoted(connection.key),
    }
    check(connection)
    # ssh takes the first value it finds: ours of this one, the inventory's of those at the end.
    lines = ["StrictHostKeyChecking yes"]
    lines += [f"{name} {value}" for name, value in given.items() if value]
    lines += options(connection)
    lines += ["BatchMode yes", "ConnectTimeout 10"]
    lines += ["ServerAliveInterval 5", "ServerAliveCountMax 3"]
    for line in lines:
        if not line.isprintable():
            raise RequestError(
                f"{connection.node}: {line!r:.80} is more than one line.",
                hint="The inventory's ansible_* variables of a host are single lines.",
            )
    return f"Host {connection.node}\n" + "".join(f"    {line}\n" for line in lines)


def check(connection: SshOptions) -> None:
    """Raises RequestError for what is no host, and for what leaves host keys unverified."""
    for host in (connection.node, connection.host):
        if not is_host(host):
            raise RequestError(
                f"{connection.node}: {host!r:.80} is no host name or address.",
                hint="In the inventory, ansible_host has the address of a host.",
            )
    if words := unverified_arguments(connection.arguments):
        raise RequestError(
            f"{connection.node}: host keys would not be verified ({words}).",
            hint=f"{HINT} Then run `orch provision` again.",
        )


def options(connection: SshOptions) -> list[str]:
    """`-o Key=Value`, `-J host` and `-i key` as lines of a configuration."""
    lines = []
    words = iter(shlex.split(connection.arguments))
    for word in words:
        flag, value = word[:2], word[2:]
        if flag not in ("-o", "-J", "-i"):
            raise RequestError(
                f"{connection.node}: the ssh argument {word} of the inventory cannot be carried "
                "over to orch's own connections.",
                hint="Write it as -o Option=value.",
            )
        value = value or next(words, "")
        if flag == "-o":
            name, _, setting = value.replace("=", " ", 1).partition(" ")
            lines.append(f"{name} {setting.strip()}")
        else:
            lines.append(f"{'ProxyJump' if flag == '-J' else 'IdentityFile'} {value}")
    return lines


def quoted(path: str) -> str:
    return f'"{path}"' if " " in path else path
