"""How Ansible reaches the nodes, as an ssh configuration that OpenSSH and fabric read."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.errors import RequestError


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
    """One `Host` block for each node. Raises RequestError for ssh arguments it cannot carry."""
    return "".join(f"{block(connection)}\n" for connection in connections)


def block(connection: SshOptions) -> str:
    given = {
        "HostName": connection.host,
        "Port": connection.port,
        "User": connection.user,
        "IdentityFile": quoted(connection.key),
    }
    lines = [f"{name} {value}" for name, value in given.items() if value]
    lines += options(connection)
    # ssh takes the first value it finds: what the inventory says wins over these.
    lines += ["StrictHostKeyChecking yes", "BatchMode yes", "ConnectTimeout 10"]
    lines += ["ServerAliveInterval 5", "ServerAliveCountMax 3"]
    return f"Host {connection.node}\n" + "".join(f"    {line}\n" for line in lines)


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
    return [line for line in lines if line.lower() != "stricthostkeychecking no"]


def quoted(path: str) -> str:
    return f'"{path}"' if " " in path else path
