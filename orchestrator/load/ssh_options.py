"""The connection settings of Ansible as an ssh configuration, and checks that they verify host keys.

Provisioning transfers secrets and the cluster's own key. Over a connection to an unverified host, whoever answers
would receive them.
"""

from __future__ import annotations

import getopt
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from orchestrator.errors import RequestError
from orchestrator.load.files import read_table
from orchestrator.model.hosts import is_host
from orchestrator.model.printable import one_line

TABLES = read_table(Path(__file__).with_name("ssh_options.toml"))
HINT: str = TABLES["hint"]
ARGUMENTS: list[str] = TABLES["arguments"]
SAFE_VALUES: dict[str, str] = TABLES["safe_values"]
SAFE_OPTIONS: dict[str, str] = TABLES["safe_options"]
OPTION = re.compile(rf"({'|'.join(SAFE_OPTIONS)})\s*(?:=\s*|\s+)(?=(\S*))", re.IGNORECASE)
# ssh(1): -F and -S, also after options without an argument.
OTHER_CONFIGURATION = re.compile(r"-[46AaCfGgKkMNnqsTtVvXxYy]*F")
SHARED = re.compile(r"-[46AaCfGgKkMNnqsTtVvXxYy]*S(.*)")
FLAGS = "46AaCqTvi:J:l:o:p:S:"
IGNORED_FLAGS = ("-q", "-T", "-v")  # they have no effect on orch's connections
KEYWORD_AND_VALUE = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*\S)\s*", re.DOTALL)


def find_unsafe_setting(variables: Mapping[str, object]) -> str:
    """Return the setting that disables the verification, as `variable: value`; empty if there is none.

    Args:
        variables: Ansible's variables, by the names that an inventory gives them.
    """
    for name, safe in SAFE_VALUES.items():
        if name in variables and not re.fullmatch(safe, str(variables[name]).strip()):
            return f"{name}: {variables[name]}"
    for name in ARGUMENTS:
        if argument := find_unsafe_argument(str(variables.get(name) or "")):
            return f"{name}: {argument}"
    return ""


def find_unsafe_argument(text: str) -> str:
    """Return the ssh argument that would accept an unknown key; empty if there is none.

    The other configuration of a ProxyCommand applies to the jump host only, and the node's key is verified through it.
    """
    try:
        arguments = shlex.split(text)
    except ValueError:  # Ansible and ssh report it
        arguments = []
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if OTHER_CONFIGURATION.match(argument):
            return "-F selects a configuration that orch cannot check"
        if (shared := SHARED.match(argument)) and (shared[1] or following) != "none":
            return "-S selects a connection that somebody else may have opened"
    # Without quotes, as ssh and the shell of a ProxyCommand see it.
    for option, value in OPTION.findall(re.sub(r"[\"'\\]", "", text)):
        if not re.fullmatch(SAFE_OPTIONS[option.lower()], value.lower()):
            return f"{option} {value}"
    return ""


def host_block(node: str, *, host: str, port: str = "", user: str = "", key: str = "", arguments: str = "") -> str:
    """Return the block of an ssh configuration with a node's connection variables, as Ansible has rendered them.

    Raises:
        RequestError: if a setting cannot be expressed or is unsafe.
    """
    for name in (node, host):
        if not is_host(name):
            raise RequestError.about("invalid-host", node=node, name=name)
    if argument := find_unsafe_argument(arguments):
        raise RequestError.about("unverified-keys", node=node, argument=argument, advice=HINT)
    values = {"HostName": host, "Port": port, "User": user, "IdentityFile": quoted(key)}
    # ssh uses the first value of an option: the inventory cannot change StrictHostKeyChecking, but those at the end.
    lines = ["StrictHostKeyChecking yes"]
    lines += [f"{name} {value}" for name, value in values.items() if value]
    lines += argument_lines(node, arguments)
    lines += ["BatchMode yes", "ConnectTimeout 10"]
    lines += ["ServerAliveInterval 5", "ServerAliveCountMax 3"]
    for line in lines:
        if not line.isprintable():
            raise RequestError.about("setting-with-lines", node=node, line=line)
    return f"Host {node}\n" + "".join(f"    {line}\n" for line in lines)


def argument_lines(node: str, arguments: str) -> list[str]:
    """Return arguments of ssh, such as `-o Key=Value` and `-J host`, as lines of a configuration.

    Raises:
        RequestError: if one has no equivalent.
    """
    try:
        options, operands = getopt.getopt(shlex.split(arguments), FLAGS)
        lines = [option_line(flag, value) for flag, value in options if flag not in IGNORED_FLAGS]
        if operands:
            raise ValueError(f"{operands[0]} is not an option")
    except (getopt.GetoptError, ValueError) as error:
        raise RequestError.about("ssh-arguments", node=node, error=one_line(str(error))) from None
    return lines


def option_line(flag: str, value: str) -> str:
    """Return an argument as a line of a configuration.

    Raises:
        ValueError: if orch's connections cannot use it.
    """
    match = KEYWORD_AND_VALUE.fullmatch(value if flag == "-o" else f"{TABLES['keywords'][flag]} {quoted(value)}")
    if match is None:
        raise ValueError(f"{flag} {value} has no value")
    keyword, setting = match.groups()
    if keyword.lower() == "proxyjump" and "[" in setting:  # fabric would take it for a name
        raise ValueError(f"{setting} is an IPv6 address; name a Host of ~/.ssh/config instead")
    return f"{keyword} {setting}"


def quoted(path: str) -> str:
    return f'"{path}"' if " " in path else path
