"""What provisioning did, or would do, on each node."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.model.printable import one_line

SSH_PORT = "22"
KEY_FILE = "ansible_ssh_private_key_file"
LET_IN = "Permission denied ("  # what OpenSSH says of a key that the host does not accept
UNANSWERED = "Is it on, and reached from here? `ssh HOST` tries it; ansible_host sets its address."
# What OpenSSH and Ansible say, and what it means for whoever reads the table.
CAUSES = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed",
        "The node was installed anew, or another machine answers in its place. Find out which; "
        "only then remove the old key (ssh-keygen -R HOST) and record the new one.",
    ),
    (
        "Host key verification failed",
        "its host key is not known here",
        "Record it once: ssh-keyscan HOST >> ~/.ssh/known_hosts, and compare its fingerprint with "
        "what the node itself shows (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub).",
    ),
    (
        LET_IN,
        "it does not let this key or user in",
        "Set ansible_user and ansible_ssh_private_key_file in the inventory.",
    ),
    (
        "Connection refused",
        "nothing listens on its SSH port",
        "Start sshd there, or set ansible_port in the inventory.",
    ),
    ("timed out", "it does not answer", UNANSWERED),
    ("No route to host", "it does not answer", UNANSWERED),
    ("Could not resolve hostname", "its name is not known here", "Set ansible_host in the inventory to its address."),
    ("python3: not found", "it has no Python", "Install python3 there, or set ansible_python_interpreter."),
    ("No space left on device", "its disk is full", "Free some space and run it again."),
    ("Missing sudo password", "sudo wants a password", "Give it: --ask-become-pass."),
    ("Incorrect sudo password", "the sudo password is wrong", "Give it again: --ask-become-pass."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What differed from what it should be."""

    what: str
    is_: str
    should: str


@dataclass(slots=True, kw_only=True)
class NodeReport:
    """One node. `changed` counts tasks; `seconds` are those that tasks took there."""

    node: str
    ok: int = 0
    changed: int = 0
    failed: int = 0
    seconds: float = 0.0
    problem: str = ""
    hint: str = ""
    changes: list[Change] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole run. `state`: done, drift, failed or stopped."""

    cluster: str
    check: bool
    state: str
    seconds: float
    log: str
    nodes: tuple[NodeReport, ...]

    @property
    def exit_code(self) -> int:
        """Drift that --check has found is a failure, so that a script can wait for it."""
        return {"done": 0, "drift": 1, "failed": 1, "stopped": 130}[self.state]


def explain(message: str) -> tuple[str, str]:
    """(problem, hint) for the words of ssh, Ansible or a module."""
    for signature, problem, hint in CAUSES:
        if signature in message:
            return problem, hint
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return one_line(" ".join(lines)[-500:]), ""


def fill_in_host(hint: str, name: str, variables: Mapping[str, Any]) -> str:
    """Return a hint whose commands name a host's address, port, user and key in place of HOST."""
    address = str(variables.get("ansible_host", name))
    port = str(variables.get("ansible_port", SSH_PORT))
    user, key = variables.get("ansible_user"), variables.get(KEY_FILE)
    at_port = ["-p", port] if port != SSH_PORT else []
    ssh = [*(["-i", str(key)] if key else []), *at_port, f"{user}@{address}" if user else address]
    host_key_name = address if port == SSH_PORT else f"[{address}]:{port}"
    return (
        hint.replace("ssh HOST", shlex.join(["ssh", *ssh]))
        .replace("ssh-keyscan HOST", shlex.join(["ssh-keyscan", *at_port, address]))
        .replace("-R HOST", shlex.join(["-R", host_key_name]))
    )


def message_of(result: Mapping[str, Any]) -> str:
    """All that a failed task said, its reason first."""
    parts = [str(result.get(key) or "") for key in ("msg", "module_stderr", "stderr")]
    return "\n".join(part for part in parts if part)


def changes_of(result: Mapping[str, Any], task: str) -> list[Change]:
    """The module's own account; a task that has none is named itself."""
    drift = result.get("drift")
    told = [one for one in drift if isinstance(one, dict)] if isinstance(drift, list) else []
    if told:
        return [Change(what=word(one, "what"), is_=word(one, "is"), should=word(one, "should")) for one in told]
    return [Change(what=task[:1].lower() + task[1:], is_="not done", should="done")]


def word(told: Mapping[str, Any], key: str) -> str:
    return one_line(str(told.get(key, "")))
