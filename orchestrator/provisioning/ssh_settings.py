"""Record what the user's ssh configuration says about a node, and write the files for ssh between the nodes.

Ansible's ssh reads ~/.ssh/config and /etc/ssh/ssh_config. orch's own connections and those between nodes read only the
configuration that orch writes from its records.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import ExecuteError
from orchestrator.files import render_template, tomllib
from orchestrator.load.records import NodeConnection, SshSettings
from orchestrator.model.hosts import grouped, is_address, is_host, known_host_name
from orchestrator.provisioning.preflight import is_loopback
from orchestrator.provisioning.probe import Probe

SSH_SECONDS = 10.0  # time limit for `ssh -G`, whose configuration may run programs
MAX_HOPS = 8
OPTIONS = tomllib.loads(Path(__file__).with_name("ssh_options.toml").read_text())["recorded"]
FILES = ("CertificateFile", "IdentityFile")  # one path for each line
TOKEN = re.compile(r"%.|\$\{\w+\}")  # ssh_config(5)
Settings = dict[str, list[str]]  # the values of each key


def resolve_connection(connection: NodeConnection, config: Path | None = None) -> NodeConnection:
    """Return the settings with those of the user's ssh configuration for the node and its jump hosts.

    Args:
        connection: the settings in the inventory.
        config: the configuration; ~/.ssh/config and that of the system by default.
    """
    settings, recorded = resolve(connection, config)
    hops: dict[str, SshSettings] = {}
    waiting = jump_hosts(settings)
    while waiting and len(hops) < MAX_HOPS:
        name = waiting.pop(0)
        if name not in hops and is_host(name):
            hop_settings, hops[name] = resolve(SshSettings(host=name), config)
            waiting += jump_hosts(hop_settings)
    return NodeConnection(**recorded.model_dump(), hops=hops)


def resolve(connection: SshSettings, config: Path | None) -> tuple[Settings, SshSettings]:
    """Return all settings of ssh for a host, and the given ones with those that the user's configuration adds."""
    arguments = [
        *shlex.split(connection.arguments),
        *(["-p", connection.port] if connection.port else []),
        *(["-l", connection.user] if connection.user else []),
        *(["-i", connection.key] if connection.key else []),
        *("--", connection.host),
    ]
    selected = ["-F", str(config)] if config else []
    try:
        settings, defaults = query_ssh([*selected, *arguments]), query_ssh(["-F", "none", *arguments])
    except ExecuteError:
        return {}, connection
    changed = {key: values for key, values in settings.items() if values != defaults.get(key)}
    first_values = {key: values[0] for key, values in settings.items()}
    options = [
        f"-o {shlex.quote(f'{option}={quoted(option, setting)}')}"
        for option in OPTIONS
        for value in changed.get(option.lower(), ())  # as `ssh -G` writes the names
        if (setting := existing_file(value, connection.host, first_values) if option in FILES else value)
    ]
    host = settings["hostname"][0]
    recorded = SshSettings(
        host=host if is_host(host) else connection.host,
        port=changed.get("port", [connection.port])[0],
        user=changed.get("user", [connection.user])[0],
        key=existing_file(connection.key, connection.host, first_values) or connection.key,
        arguments=" ".join([connection.arguments.strip(), *options]).strip(),
    )
    return settings, recorded


def query_ssh(arguments: Sequence[str]) -> Settings:
    """Return the settings that `ssh -G` prints.

    Raises:
        ExecuteError: if it fails.
    """
    command, hint = ["ssh", "-G", *arguments], "Install openssh-client, and correct the configuration of ssh."
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SSH_SECONDS, check=True
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        stderr = getattr(error, "stderr", None)  # bytes after a timeout
        reason = stderr.strip() if isinstance(stderr, str) else ""
        raise ExecuteError(f"{shlex.join(command)}: {reason or error}", hint=hint) from None
    return grouped(line.partition(" ")[::2] for line in done.stdout.splitlines())


def existing_file(path: str, host: str, settings: Mapping[str, str]) -> str:
    """Return a path in the output of `ssh -G` with the values of its tokens and variables; empty if there is no file.

    `%%` stays, because ssh replaces it in the configuration of orch, too.

    Args:
        path: the path as the configuration has it.
        host: the name with which ssh was started.
        settings: the settings that `ssh -G` prints for it.
    """
    user = pwd.getpwuid(os.getuid())
    values = {"%d": user.pw_dir, "%u": user.pw_name, "%n": host}
    values |= {"%h": settings["hostname"], "%p": settings["port"], "%r": settings["user"]}
    variables = {f"${{{name}}}": value for name, value in os.environ.items()}
    path = TOKEN.sub(lambda match: (values | variables).get(match[0], match[0]), path)
    return path if Path(path.replace("%%", "%")).expanduser().is_file() else ""


def quoted(option: str, value: str) -> str:
    """Return a value as a configuration has it; `ssh -G` prints paths with spaces without quotes."""
    return f'"{value}"' if " " in value and (option in FILES or Path(value).is_file()) else value


def jump_hosts(settings: Settings) -> list[str]:
    """Return the names of the jump hosts in a list such as `alice@gate:2222,inner`."""
    hosts = [host for value in settings.get("proxyjump", ()) for host in value.split(",") if host != "none"]
    return [host.removeprefix("ssh://").rpartition("@")[2].partition(":")[0] for host in hosts]


def host_entries(probes: tuple[Probe, ...], addresses: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the entries of all nodes for /etc/hosts.

    They have the inventory's names only. The host name that a node reports could redirect the other nodes'
    connections to it. Addresses and localhost are omitted.
    """
    names = [probe.name for probe in probes if not is_address(probe.name)]
    host_names = [name for name in names if name.lower().partition(".")[0] != "localhost"]
    return [{"address": addresses[name], "names": [name]} for name in host_names]


def has_entries(probe: Probe, entries: list[dict[str, Any]]) -> bool:
    """Return whether /etc/hosts of a node leads to these addresses first, and has no loopback address for the names."""
    lines = [line.partition("#")[0].split() for line in probe.hosts_file.splitlines()]
    names = {name for entry in entries for name in entry["names"]}
    loopback_names = {name for fields in lines if fields and is_loopback(fields[0]) for name in fields[1:]}
    first_addresses = {name: fields[0] for fields in reversed(lines) for name in fields[1:]}
    return not names & loopback_names and all(
        first_addresses.get(name) == entry["address"] for entry in entries for name in entry["names"]
    )


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
    return render_template("ssh_config.j2", probes=probes, addresses=addresses, ports=ports, root=root)
