"""Turn messages of ssh, Ansible and its modules into problems, hints and changes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import ExecuteError
from orchestrator.files import tomllib
from orchestrator.load.inventory import SSH_ARGUMENTS, is_port, is_template
from orchestrator.model.hosts import SSH_PORT, keyscan_command, known_host_name
from orchestrator.model.printable import one_line
from orchestrator.model.provision_report import Change
from orchestrator.provisioning.ssh_settings import Settings, query_ssh

KEY_FILE = "ansible_ssh_private_key_file"
PERMISSION_DENIED = "Permission denied ("  # printed by OpenSSH if the host does not accept the key
# Printed by Intel MPI on a node, if ssh from there to another one fails. The error of ssh is on another line.
NOT_STARTED = re.compile(r"Unable to run \S+ on ([\w.:-]+)")
SSH_REASON = re.compile(r"^(?:.*: Permission denied \(.*|Host key verification failed\.|ssh: .*)", re.MULTILINE)
NOT_STARTED_HINT = (
    "The sshd of that node must accept the key that orch adds to ~/.ssh/authorized_keys: look at AuthorizedKeysFile, "
    "AllowUsers and Match in its sshd_config."
)
KNOWN_MESSAGES = tomllib.loads(Path(__file__).with_name("known_messages.toml").read_text())["messages"]


def explain(message: str) -> tuple[str, str]:
    """Return the problem and a hint for a message of ssh, Ansible or a module."""
    if match := NOT_STARTED.search(message):
        reason = SSH_REASON.search(message)
        cause = f": {one_line(reason[0])[:200]}" if reason else ""
        is_denied = reason is not None and PERMISSION_DENIED in reason[0]
        hint = NOT_STARTED_HINT if is_denied else f"Run `ssh {match[1]}` on this node, and open the SSH port."
        return f"it cannot start programs on {match[1]} over SSH{cause}", hint
    for entry in KNOWN_MESSAGES:
        if entry["part"] in message:
            return entry["problem"], entry["hint"]
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return one_line(" ".join(lines)[-500:]), ""


def ssh_settings(name: str, variables: Mapping[str, Any]) -> Settings:
    """Return the settings of a host in the user's ssh configuration and in the inventory; none if ssh rejects them."""
    port = str(variables.get("ansible_port"))
    try:
        texts = [str(variables.get(key) or "") for key in SSH_ARGUMENTS if not is_template(variables.get(key))]
        at_port = ["-p", port] if is_port(port) else []
        host = str(variables.get("ansible_host") or name)
        return query_ssh([*shlex.split(" ".join(texts)), *at_port, "--", host])
    except (ValueError, ExecuteError):
        return {}


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
    return "\n".join(str(result[key]) for key in ("msg", "module_stderr", "stderr") if result.get(key))


def changes_of(result: Mapping[str, Any], task: str) -> list[Change]:
    """Return the changes that the module reports; without them, one that names the task."""
    drift = result.get("drift")
    rows = [row for row in drift if isinstance(row, dict)] if isinstance(drift, list) else []
    if not rows:
        return [Change(what=task[:1].lower() + task[1:], is_="not done", should="done")]
    texts = ([one_line(str(row.get(key, ""))) for key in ("what", "is", "should")] for row in rows)
    return [Change(what=subject, is_=is_, should=should) for subject, is_, should in texts]
