"""Runs a playbook through ansible-runner, and tells what happens on which node."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible_runner

from orchestrator.load.ansible import ansible_environment
from orchestrator.paths import SHARE
from orchestrator.provisioning.extra_variables import render
from orchestrator.provisioning.task_result import RESULTS, TaskResult, task_result
from orchestrator.screen import harmless
from orchestrator.state import ansible_home

MARK = "ORCH_PLAYBOOK"  # in the environment of all processes of a playbook: its private folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    """What to run. `variables` hold no secrets: those are Ansible's to read, from the inventory.
    `state`: the folder that orch keeps for the inventory."""

    name: str
    inventory: Path
    variables: Mapping[str, Any]
    state: Path
    log: Path
    check: bool = False
    limit: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def run(playbook: Playbook, on_result: Callable[[TaskResult], None], on_line: Callable[[str], None]) -> str:
    """-> ansible-runner's word for the end: successful, failed, canceled, timeout."""
    folder = tempfile.mkdtemp(prefix="orch-ansible-")  # mode 0700
    options = ["--check", "--diff"] if playbook.check else []
    # ansible-runner takes these handlers and does not give them back: Ctrl-C would be lost.
    taken = (signal.SIGINT, signal.SIGTERM) if in_main_thread() else ()
    handlers = {number: signal.getsignal(number) for number in taken}
    try:
        with playbook.log.open("a") as log:
            (Path(folder) / "env").mkdir()
            variables = Path(folder) / "env" / "extravars"
            variables.write_text(render(playbook.variables))
            ended = ansible_runner.run(
                private_data_dir=folder,
                project_dir=str(SHARE / "playbooks"),
                playbook=f"{playbook.name}.yml",
                inventory=str(playbook.inventory.resolve()),
                limit=",".join(playbook.limit) or None,
                cmdline=" ".join(options) or None,
                envvars={**settings(playbook), **playbook.environment, MARK: folder},
                fact_cache_type="memory",
                quiet=True,
                event_handler=lambda event: handle(event, log, on_result, on_line),
            )
        return str(ended.status)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        end_workers(folder)
        shutil.rmtree(folder, ignore_errors=True)


def end_workers(folder: str) -> None:
    """End the workers of an interrupted playbook, and the programs that they have started.

    Ansible starts each worker in a new session, and ansible-runner ends only that of the playbook:
    the workers would continue their task and repeat it.
    """
    workers = {pid for pid in all_pids() if is_of_playbook(pid, folder)}
    for pid in all_pids():
        if session_of(pid) in workers:
            kill(pid, workers)


def all_pids() -> list[int]:
    """Return the numbers of all processes that are visible here."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def is_of_playbook(pid: int, folder: str) -> bool:
    """Return whether the process is one of Ansible's for this folder.

    A pager with a file of the folder has no such variable, and an ssh connection that outlives the
    playbook has no such argument.
    """
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return False
    return f"{folder}/".encode() in arguments and f"{MARK}={folder}".encode() in variables


def session_of(pid: int) -> int | None:
    """Return the session of a process, or None if it has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def kill(pid: int, sessions: Container[int | None]) -> None:
    """Kill a process of these sessions.

    The descriptor is opened before the check, because numbers are used again.
    """
    with contextlib.suppress(OSError):  # it has ended
        descriptor = os.pidfd_open(pid)
        try:
            if session_of(pid) in sessions:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def settings(playbook: Playbook) -> dict[str, str]:
    """Ours, whatever the user's own ansible.cfg and environment say."""
    programs = str(Path(sys.executable).parent)
    return {
        **ansible_environment(),
        **verified_ssh_args(),
        "ANSIBLE_ROLES_PATH": str(SHARE / "playbooks" / "roles"),
        "ANSIBLE_LIBRARY": str(SHARE / "playbooks" / "library"),
        "ANSIBLE_ACTION_PLUGINS": str(SHARE / "playbooks" / "action_plugins"),
        # A cache that lasts is read and decoded anew for each task of each node.
        "ANSIBLE_CACHE_PLUGIN": "memory",
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        # What a node says of itself becomes no variable of its own name.
        "ANSIBLE_INJECT_FACT_VARS": "False",
        "ANSIBLE_NOCOLOR": "True",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": shared_connections(playbook.state),
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def verified_ssh_args() -> dict[str, str]:
    """The user's own arguments replace those of our configuration, but for this one."""
    own = os.environ.get("ANSIBLE_SSH_ARGS")
    return {} if own is None else {"ANSIBLE_SSH_ARGS": f"-o StrictHostKeyChecking=yes {own}"}


def shared_connections(state: Path) -> str:
    """A folder for ssh's shared connections of this inventory alone.

    Ansible names them by address, port and user. Where two clusters have the same private addresses
    behind different jump hosts, one would be reached over a connection to the other, past all host
    keys. Short, as a socket's path has at most 107 characters.
    """
    base = ansible_home().get("ANSIBLE_HOME", "~/.ansible")
    return f"{base}/cp/{hashlib.sha256(str(state).encode()).hexdigest()[:8]}"


def handle(
    event: Mapping[str, Any], log: Any, on_result: Callable[[TaskResult], None], on_line: Callable[[str], None]
) -> bool:
    """One event; -> False: it is not kept on disk."""
    if event.get("stdout"):
        words = harmless(str(event["stdout"]))
        print(words, file=log, flush=True)
        on_line(words)
    data = event.get("event_data", {})
    if event.get("event") in RESULTS and data.get("host"):
        on_result(task_result(RESULTS[event["event"]], data))
    return False
