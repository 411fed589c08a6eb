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
from collections.abc import Callable, Mapping
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


def run(
    playbook: Playbook, on_result: Callable[[TaskResult], None], on_line: Callable[[str], None]
) -> str:
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
                envvars={**settings(playbook), **playbook.environment},
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
    """Those of an interrupted playbook. Ansible gives each worker a session of its own, and
    ansible-runner ends the playbook's alone: they would go on with their task, and try it again."""
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended by now, or leads no group
            if os.fsencode(f"{folder}/") in words.read_bytes():
                os.killpg(int(words.parent.name), signal.SIGKILL)


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
    event: Mapping[str, Any],
    log: Any,
    on_result: Callable[[TaskResult], None],
    on_line: Callable[[str], None],
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
