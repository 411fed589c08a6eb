"""The connection settings of Ansible as an ssh configuration for OpenSSH and fabric."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.errors import RequestError
from orchestrator.model.host_key_checks import HINT, find_unsafe_argument
from orchestrator.model.host_names import is_host


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
    """A node's connection variables as rendered by Ansible; `arguments` are those of ssh, as typed."""

    node: str
    host: str
    port: str = ""
    user: str = ""
    key: str = ""
    arguments: str = ""


def render(connections: Iterable[SshOptions]) -> str:
    """Return an ssh configuration with one `Host` block per node.

    Raises:
        RequestError: if a setting cannot be expressed or is unsafe.
    """
    return "".join(f"{host_block(connection)}\n" for connection in connections)


def host_block(connection: SshOptions) -> str:
    values = {
        "HostName": connection.host,
        "Port": connection.port,
        "User": connection.user,
        "IdentityFile": quoted(connection.key),
    }
    check_connection(connection)
    # ssh uses the first value of an option: the inventory cannot change StrictHostKeyChecking, but those at the end.
    lines = ["StrictHostKeyChecking yes"]
    lines += [f"{name} {value}" for name, value in values.items() if value]
    lines += argument_lines(connection)
    lines += ["BatchMode yes", "ConnectTimeout 10"]
    lines += ["ServerAliveInterval 5", "ServerAliveCountMax 3"]
    for line in lines:
        if not line.isprintable():
            raise RequestError(
                f"{connection.node}: {line!r:.80} has more than one line.",
                hint="Each ansible_* variable of a host must be a single line.",
            )
    return f"Host {connection.node}\n" + "".join(f"    {line}\n" for line in lines)


def check_connection(connection: SshOptions) -> None:
    """Raise RequestError for an invalid host, or for arguments that disable the verification of host keys."""
    for host in (connection.node, connection.host):
        if not is_host(host):
            raise RequestError(
                f"{connection.node}: {host!r:.80} is not a host name or address.",
                hint="Set ansible_host in the inventory to the address of the host.",
            )
    if argument := find_unsafe_argument(connection.arguments):
        raise RequestError(
            f"{connection.node}: host keys would not be verified ({argument}).",
            hint=f"{HINT} Then run `orch provision` again.",
        )


def argument_lines(connection: SshOptions) -> list[str]:
    """Return `-o Key=Value`, `-J host` and `-i key` as lines of a configuration."""
    lines = []
    arguments = iter(shlex.split(connection.arguments))
    for word in arguments:
        flag, value = word[:2], word[2:]
        if flag not in ("-o", "-J", "-i"):
            raise RequestError(
                f"{connection.node}: orch's own connections do not support the inventory's ssh argument {word}.",
                hint="Write it as -o Option=value.",
            )
        value = value or next(arguments, "")
        if flag == "-o":
            name, _, setting = value.replace("=", " ", 1).partition(" ")
            lines.append(f"{name} {setting.strip()}")
        else:
            lines.append(f"{'ProxyJump' if flag == '-J' else 'IdentityFile'} {value}")
    return lines


def quoted(path: str) -> str:
    return f'"{path}"' if " " in path else path
