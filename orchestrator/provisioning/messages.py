"""Turn messages of ssh, Ansible and its modules into problems, hints and changes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from orchestrator.load.inventory import SSH_ARGUMENTS, is_port, is_template
from orchestrator.model.hosts import SSH_PORT, keyscan_command, known_host_name
from orchestrator.model.printable import one_line
from orchestrator.model.provision_report import Change
from orchestrator.provisioning.ssh_settings import Settings, query_ssh

KEY_FILE = "ansible_ssh_private_key_file"
PERMISSION_DENIED = "Permission denied ("  # printed by OpenSSH if the host does not accept the key
NO_RESPONSE = "Check that it is running and reachable: `ssh HOST`; ansible_host sets its address."
TOO_OLD = "its Python is too old"
NEWER_PYTHON = "Install a newer one on the node (RHEL 8: dnf install python3.11), or set ansible_python_interpreter."
# Printed by Intel MPI on a node, if ssh from there to another one fails. The error of ssh is on another line.
NOT_STARTED = re.compile(r"Unable to run \S+ on ([\w.:-]+)")
SSH_REASON = re.compile(r"^(?:.*: Permission denied \(.*|Host key verification failed\.|ssh: .*)", re.MULTILINE)
NOT_STARTED_HINT = (
    "The sshd of that node must accept the key that orch adds to ~/.ssh/authorized_keys: look at AuthorizedKeysFile, "
    "AllowUsers and Match in its sshd_config."
)
# Parts of messages of OpenSSH and Ansible, each with the problem and a hint for the report.
KNOWN_MESSAGES = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed",
        "The node was reinstalled, or another machine responds at its address. Find out which, and "
        "only then remove the old key (ssh-keygen -f KNOWN_HOSTS -R HOST) and record the new one.",
    ),
    (
        "Host key verification failed",
        "its host key is unknown on this machine",
        "Record it once: ssh-keyscan HOST >> KNOWN_HOSTS, and compare its fingerprint with "
        "the one on the node (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub).",
    ),
    (
        PERMISSION_DENIED,
        "it does not accept this key or user",
        "Set ansible_user and ansible_ssh_private_key_file in the inventory.",
    ),
    (
        "Connection refused",
        "nothing listens on its SSH port",
        "Start sshd on the node, or set ansible_port in the inventory.",
    ),
    (
        "HYD_sock_get_iface_ip",
        "its network interface has no IPv4 address, which the MPI of the stack needs",
        "Set orch_address in the inventory to an IPv4 address of the node.",
    ),
    ("timed out", "it does not respond", NO_RESPONSE),
    ("No route to host", "it does not respond", NO_RESPONSE),
    ("Data could not be sent to remote host", "it does not respond", NO_RESPONSE),  # Ansible: ssh has ended
    ("Could not resolve hostname", "its name cannot be resolved", "Set ansible_host in the inventory to its address."),
    ("ansible-core requires a minimum of Python", TOO_OLD, NEWER_PYTHON),
    ("python3: not found", "it has no Python", "Install python3 on the node, or set ansible_python_interpreter."),
    (
        "pyenv: python3",
        "the newest Python in its PATH belongs to a version that pyenv has not selected",
        "Set ansible_python_interpreter to another Python of the node, such as /usr/bin/python3.",
    ),
    ("No space left on device", "its disk is full", "Free some space and run the command again."),
    ("Missing sudo password", "sudo requires a password", "Use --ask-become-pass."),
    ("Incorrect sudo password", "the sudo password is wrong", "Use --ask-become-pass and enter it again."),
    ("SyntaxError: ", TOO_OLD, NEWER_PYTHON),  # Python 2.7 to 3.7, to a module or to Ansible's own code
)


def explain(message: str) -> tuple[str, str]:
    """Return the problem and a hint for a message of ssh, Ansible or a module."""
    if match := NOT_STARTED.search(message):
        reason = SSH_REASON.search(message)
        cause = f": {one_line(reason[0])[:200]}" if reason else ""
        is_denied = reason is not None and PERMISSION_DENIED in reason[0]
        hint = NOT_STARTED_HINT if is_denied else f"Run `ssh {match[1]}` on this node, and open the SSH port."
        return f"it cannot start programs on {match[1]} over SSH{cause}", hint
    for signature, problem, hint in KNOWN_MESSAGES:
        if signature in message:
            return problem, hint
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return one_line(" ".join(lines)[-500:]), ""


def ssh_settings(name: str, variables: Mapping[str, Any]) -> Settings:
    """Return the settings of a host in the user's ssh configuration and in the inventory; none if ssh rejects them."""
    port = str(variables.get("ansible_port"))
    try:
        texts = [str(variables.get(key) or "") for key in SSH_ARGUMENTS if not is_template(variables.get(key))]
        arguments = shlex.split(" ".join(texts))
    except ValueError:
        return {}
    at_port = ["-p", port] if is_port(port) else []
    return query_ssh([*arguments, *at_port, "--", str(variables.get("ansible_host") or name)])


def fill_in_host(hint: str, name: str, variables: Mapping[str, Any], settings: Settings | None = None) -> str:
    """Return a hint whose commands name a host's address, port, user, key and known_hosts file.

    Args:
        hint: the hint, with HOST and KNOWN_HOSTS in place of them.
        name: the name of the host in the inventory.
        variables: its variables.
        settings: its settings of ssh, which ssh-keyscan and ssh-keygen do not read by themselves.
    """
    settings = settings or {}
    address = str(variables.get("ansible_host") or name)
    port = str(variables.get("ansible_port"))
    port = port if is_port(port) else str(SSH_PORT)
    user, key = variables.get("ansible_user"), variables.get(KEY_FILE)
    at_port = ["-p", port] if port != str(SSH_PORT) else []
    ssh = [*(["-i", str(key)] if key else []), *at_port, f"{user}@{address}" if user else address]
    alias = settings.get("hostkeyalias", [""])[0]
    key_host, key_port = settings.get("hostname", [address])[0], int(settings.get("port", [port])[0])
    known_hosts = settings.get("userknownhostsfile", ["~/.ssh/known_hosts"])[0].split()[0]
    return (
        hint.replace("ssh HOST", shlex.join(["ssh", *ssh]))
        .replace("ssh-keyscan HOST", keyscan_command(key_host, key_port, alias))
        .replace("-R HOST", shlex.join(["-R", alias or known_host_name(key_host, key_port)]))
        .replace("KNOWN_HOSTS", known_hosts)
    )


def message_of(result: Mapping[str, Any]) -> str:
    """Return the messages of a failed task, its reason first."""
    parts = [str(result.get(key) or "") for key in ("msg", "module_stderr", "stderr")]
    return "\n".join(part for part in parts if part)


def changes_of(result: Mapping[str, Any], task: str) -> list[Change]:
    """Return the changes that the module reports; without them, one that names the task."""
    drift = result.get("drift")
    rows = [row for row in drift if isinstance(row, dict)] if isinstance(drift, list) else []
    if not rows:
        return [Change(what=task[:1].lower() + task[1:], is_="not done", should="done")]
    texts = ([one_line(str(row.get(key, ""))) for key in ("what", "is", "should")] for row in rows)
    return [Change(what=subject, is_=is_, should=should) for subject, is_, should in texts]
