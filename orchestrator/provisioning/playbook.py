"""Runs of Ansible playbooks through ansible-runner, and the results of their tasks."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orch_node.agent.processes import all_pids, read_argv, read_texts
from orch_node.machine import read_stat, send_signal, start_time

from orchestrator.errors import RequestError
from orchestrator.files import SHARE, ansible_home
from orchestrator.load.inventory import ansible_environment
from orchestrator.model.printable import one_line
from orchestrator.screen import escape_control_chars

RESULTS = {"runner_on_ok": "ok", "runner_on_failed": "failed", "runner_on_unreachable": "unreachable"}
# In the environment of all processes of a playbook: its private folder.
FOLDER_VARIABLE = "ORCH_PLAYBOOK"
# Ansible's marker for text that it does not evaluate as a template (parsing/ajson, in all supported versions). A
# template runs programs on this machine, and a text from a node may look like one.
UNSAFE = "__ansible_unsafe"
# The options of ansible.cfg that the user's arguments must not change.
SSH_OPTIONS = (
    "-o RemoteCommand=none -o RequestTTY=no -o ClearAllForwardings=yes -o PermitLocalCommand=no "
    "-o StrictHostKeyChecking=yes"
)
FILE_VARIABLE = re.compile(r"ANSIBLE_\w+_FILE")  # such as ANSIBLE_VAULT_PASSWORD_FILE
# Nodes that Ansible works on at the same time. Each is a process of this machine, which adds about 30 MB of memory and
# needs 0.1 to 0.2 s of a core for each task.
MAX_FORKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The result of one task on one node."""

    node: str
    role: str
    task: str
    state: str  # ok, failed or unreachable
    changed: bool
    seconds: float
    start: str  # ISO 8601
    end: str
    result: Mapping[str, Any]  # of the module: untrusted, because it comes from the node
    action: str = ""  # the module


def task_result(state: str, data: Mapping[str, Any]) -> TaskResult:
    """Return the result that an event of ansible-runner describes.

    Args:
        state: ok, failed or unreachable, by the kind of the event.
        data: `event_data` of the event.
    """
    result = data.get("res")
    duration = data.get("duration")
    ignored = state == "failed" and data.get("ignore_errors")
    return TaskResult(
        node=str(data["host"]),
        role=str(data.get("role") or ""),
        task=one_line(str(data.get("task") or "")),
        state="ok" if ignored else state,
        changed=isinstance(result, dict) and result.get("changed") is True,
        seconds=duration if isinstance(duration, float) and math.isfinite(duration) else 0.0,
        start=str(data.get("start") or ""),
        end=str(data.get("end") or ""),
        result=result if isinstance(result, dict) else {},
        action=str(data.get("resolved_action") or data.get("task_action") or ""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbooks:
    """The settings with which a command runs playbooks."""

    inventory: Path
    state: Path  # orch's folder for the inventory
    log: Path
    check: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def run(
    playbooks: Playbooks,
    name: str,
    variables: Mapping[str, Any],
    on_result: Callable[[TaskResult], None],
    on_line: Callable[[str], None],
    *,
    limit: Sequence[str] = (),
) -> str:
    """Run a playbook and return ansible-runner's status: successful, failed, canceled or timeout.

    Args:
        playbooks: the settings.
        name: of the playbook.
        variables: for all nodes, without secrets, which Ansible reads from the inventory.
        on_result: gets the result of each task on each node.
        on_line: gets each line that Ansible prints.
        limit: the nodes; all nodes of the inventory if empty.

    Raises:
        RequestError: if the path of the inventory is not UTF-8.
    """
    import ansible_runner  # takes a tenth of a second, also for --help

    # ansible-runner replaces these handlers and does not restore them: Ctrl-C would be lost.
    in_main_thread = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
    handlers = {number: signal.getsignal(number) for number in signals}
    private_folder = tempfile.TemporaryDirectory(prefix="orch-ansible-", ignore_cleanup_errors=True)
    with private_folder as folder, playbooks.log.open("a") as log:
        (Path(folder) / "env").mkdir()
        (Path(folder) / "env" / "extravars").write_text(render_variables(variables))
        try:
            runner = ansible_runner.run(
                private_data_dir=folder,
                project_dir=str(SHARE / "playbooks"),
                playbook=f"{name}.yml",
                inventory=str(playbooks.inventory.resolve()),
                limit=",".join(limit) or None,
                cmdline="--check --diff" if playbooks.check else None,
                envvars={**ansible_variables(playbooks, forks=len(limit)), FOLDER_VARIABLE: folder},
                fact_cache_type="memory",
                quiet=True,
                event_handler=lambda event: handle_event(event, log, on_result, on_line),
            )
        except UnicodeEncodeError as error:  # in a part of a JSON file of ansible-runner
            raise RequestError.about("path-for-ansible", path=error.object.strip(', "')) from None
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            end_workers(folder)
        return str(runner.status)


def render_variables(variables: Mapping[str, Any]) -> str:
    """Return the JSON file of extra variables, in which no text is a template.

    Raises:
        ValueError: if a variable has the name of one of Ansible's markers.
    """
    return json.dumps({name: mark_unsafe(value) for name, value in variables.items()})


def mark_unsafe(value: Any) -> Any:
    """Return the value with all texts in it marked as data."""
    if isinstance(value, str):
        return {UNSAFE: value}
    if isinstance(value, Mapping):
        if markers := [name for name in value if str(name).startswith("__ansible")]:
            raise ValueError(f"{markers[0]}: not a valid name of a variable")
        return {name: mark_unsafe(item) for name, item in value.items()}
    return [mark_unsafe(item) for item in value] if isinstance(value, (list, tuple)) else value


def end_workers(folder: str) -> None:
    """End the workers of an interrupted playbook, and the programs that they have started.

    Ansible starts each worker in a new session, and ansible-runner ends only that of the playbook: the workers would
    continue their task and repeat it.
    """
    workers = {pid for pid in all_pids() if is_worker(pid, folder)}
    for pid in all_pids() if workers else ():
        start = start_time(pid)  # before the check: process numbers are reused
        _, fields = read_stat(pid)
        if fields and int(fields[3]) in workers:  # its session
            send_signal(pid, start, signal.SIGKILL)


def is_worker(pid: int, folder: str) -> bool:
    """Return whether the process is one of Ansible's for this folder.

    A pager with a file of the folder lacks the variable, and an ssh connection that outlives the playbook lacks the
    argument.
    """
    names_folder = any(os.fsencode(f"{folder}/") in argument for argument in read_argv(pid))
    return names_folder and os.fsencode(f"{FOLDER_VARIABLE}={folder}") in read_texts(pid, "environ")


def ansible_variables(playbooks: Playbooks, *, forks: int) -> dict[str, str]:
    """Return the variables of Ansible, which override the user's ansible.cfg and environment.

    Those that name files are absolute: ansible-runner starts Ansible in another folder than the current one.
    """
    programs, arguments = str(Path(sys.executable).parent), os.environ.get("ANSIBLE_SSH_ARGS")
    environment = {**os.environ, **playbooks.environment}
    paths = {name: value for name, value in environment.items() if value and FILE_VARIABLE.fullmatch(name)}
    files = {name: str(Path(value).expanduser().absolute()) for name, value in paths.items()}
    # Ansible names its shared connections by address, port and user. If two clusters have the same private addresses
    # behind different jump hosts, a shared folder would connect to the wrong one without a check of its host key. The
    # path is short, because a socket's path has at most 107 characters.
    home, digest = ansible_home().get("ANSIBLE_HOME", "~/.ansible"), hashlib.sha256(os.fsencode(playbooks.state))
    return {
        **ansible_environment(),
        **({} if arguments is None else {"ANSIBLE_SSH_ARGS": f"{SSH_OPTIONS} {arguments}"}),  # checks host keys
        "ANSIBLE_ROLES_PATH": str(SHARE / "playbooks" / "roles"),
        "ANSIBLE_LIBRARY": str(SHARE / "playbooks" / "library"),
        "ANSIBLE_ACTION_PLUGINS": str(SHARE / "playbooks" / "action_plugins"),
        # A cache on disk is read and decoded again for each task of each node.
        "ANSIBLE_CACHE_PLUGIN": "memory",
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_FORKS": str(min(forks or MAX_FORKS, MAX_FORKS)),
        # Facts that a node returns must not become variables.
        "ANSIBLE_INJECT_FACT_VARS": "False",
        "ANSIBLE_NOCOLOR": "True",
        "ANSIBLE_SSH_EXECUTABLE": os.environ.get("ANSIBLE_SSH_EXECUTABLE", str(SHARE / "playbooks" / "ssh")),
        "ORCH_PYTHON": sys.executable,
        "ANSIBLE_SSH_CONTROL_PATH_DIR": f"{home}/cp/{digest.hexdigest()[:8]}",
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        **playbooks.environment,
        **files,
    }


def handle_event(
    event: Mapping[str, Any], log: Any, on_result: Callable[[TaskResult], None], on_line: Callable[[str], None]
) -> bool:
    """Log an event and pass on its line and its result; return False, so that it is not written to disk."""
    if event.get("stdout"):
        line = escape_control_chars(str(event["stdout"]))
        print(line, file=log, flush=True)
        on_line(line)
    data = event.get("event_data", {})
    if event.get("event") in RESULTS and data.get("host"):
        on_result(task_result(RESULTS[event["event"]], data))
    return False
