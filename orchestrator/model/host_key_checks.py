"""Whether settings of ssh and of Ansible leave the verification of host keys on.

Provisioning carries secrets and the cluster's own key: over a connection to an unverified host they
are handed to whoever answers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

HINT = (
    "Take that setting away. Record each host's key once instead: ssh-keyscan HOST >> "
    "~/.ssh/known_hosts, and compare its fingerprint with what the node itself shows (ssh-keygen "
    "-lf /etc/ssh/ssh_host_ed25519_key.pub); another file than ~/.ssh/known_hosts is named by "
    "-o UserKnownHostsFile=FILE in ansible_ssh_common_args."
)
YES = frozenset({"true", "yes", "on", "1", "y", "t"})
# The programs that a variable may name: a wrapper is a script whose options nobody has seen.
SSH = re.compile(r"(?:/usr/local/bin/|/usr/bin/|/bin/)?(?:ssh|scp|sftp)")
# ssh_config(5): option -> the values with which an unknown or changed key is still refused.
OPTION = re.compile(
    r"(StrictHostKeyChecking|UserKnownHostsFile|KnownHostsCommand|"
    r"NoHostAuthenticationForLocalhost|ControlPath)\s*(?:=\s*|\s+)[\"']?([^\s\"']*)",
    re.IGNORECASE,
)
# ssh(1): -F and -S, also behind options without an argument; and the options whose argument follows
# them.
OTHER_CONFIGURATION = re.compile(r"-[46AaCfGgKkMNnqsTtVvXxYy]*F")
SHARED = re.compile(r"-[46AaCfGgKkMNnqsTtVvXxYy]*S(.*)")
# Ansible names its shared connections by address, port and user; orch keeps those of each inventory
# in a private folder of their own. Over one that somebody else has opened no key is looked at.
SOCKETS = ("ansible_control_path", "ansible_control_path_dir")
WITH_ARGUMENT = frozenset(f"-{letter}" for letter in "BbcDEeIiJLlmOoPpQRSWw")
SWITCHES = ("ansible_host_key_checking", "ansible_ssh_host_key_checking", "ansible_paramiko_host_key_checking")
REVERSED = ("ansible_paramiko_host_key_auto_add",)
ARGUMENTS = (
    "ansible_ssh_args",
    "ansible_ssh_common_args",
    "ansible_ssh_extra_args",
    "ansible_scp_extra_args",
    "ansible_sftp_extra_args",
    "ansible_paramiko_proxy_command",
)
PROGRAMS = ("ansible_ssh_executable", "ansible_scp_executable", "ansible_sftp_executable")
NESTED = 3  # a ProxyCommand is a command line inside of an argument, and may hold another


def unverified(variables: Mapping[str, object]) -> str:
    """What turns the verification off, as `variable: words`, or nothing.

    `variables`: Ansible's, by the names that an inventory gives them.
    """
    return next(found(variables), "")


def found(variables: Mapping[str, object]) -> Iterator[str]:
    yield from switched_off(variables)
    for name in PROGRAMS:
        if name in variables and not SSH.fullmatch(str(variables[name])):
            yield f"{name}: {variables[name]}"
    for name in SOCKETS:
        if variables.get(name):
            yield f"{name}: {variables[name]}"
    for name in ARGUMENTS:
        if words := unverified_arguments(str(variables.get(name) or "")):
            yield f"{name}: {words}"


def switched_off(variables: Mapping[str, object]) -> Iterator[str]:
    for name in SWITCHES:
        if name in variables and not is_yes(variables[name]):
            yield f"{name}: {variables[name]}"
    for name in REVERSED:
        if name in variables and str(variables[name]).strip().lower() not in ("false", "no", "0"):
            yield f"{name}: {variables[name]}"


def is_yes(value: object) -> bool:
    return str(value).strip().lower() in YES


def unverified_arguments(text: str) -> str:
    """The words among ssh's arguments after which an unknown key is accepted, or nothing."""
    if not text:
        return ""
    if names_configuration(text):
        return "-F names a configuration that orch has not read"
    if names_socket(text):
        return "-S names a connection that somebody may have opened"
    for layer in layers(text):
        for option, value in OPTION.findall(layer):
            if not keeps(option.lower(), value.lower()):
                return f"{option} {value}"
    return ""


def names_configuration(text: str) -> bool:
    """Whether ssh itself is given one. That of a ProxyCommand is for the jump host alone: the key
    of the node is verified through it."""
    try:
        words = iter(shlex.split(text))
    except ValueError:
        return False
    for word in words:
        if OTHER_CONFIGURATION.match(word):
            return True
        if word in WITH_ARGUMENT:
            next(words, None)
    return False


def names_socket(text: str) -> bool:
    try:
        words = iter(shlex.split(text))
    except ValueError:
        return False
    for word in words:
        if found := SHARED.match(word):
            return (found[1] or next(words, "")) != "none"
        if word in WITH_ARGUMENT:
            next(words, None)
    return False


def keeps(option: str, value: str) -> bool:
    if option == "stricthostkeychecking":
        return value in ("yes", "true", "ask")
    if option == "nohostauthenticationforlocalhost":
        return value in ("no", "false")
    if option in ("knownhostscommand", "controlpath"):
        return value == "none"
    return value not in ("", "none") and not value.startswith("/dev/")


def layers(text: str) -> Iterator[str]:
    """The text as typed, and as ssh, and the shell of a ProxyCommand, see it: without quotes."""
    for _ in range(NESTED):
        yield text
        try:
            words = shlex.split(text)
        except ValueError:  # Ansible and ssh will say so
            return
        text = " ".join(words)
