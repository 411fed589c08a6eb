"""Run a user's command on a node in the environment of ranks: `node.py exec [OPTIONS] -- COMMAND...`.

Without a command this is an interactive shell. The controller holds the standard input of this program open; when that
ends, because of Ctrl-C or a lost connection, the command and all processes that it has started are ended.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from orch_node.agent import processes
from orch_node.agent.containers import read_spec
from orch_node.protocol import files
from orch_node.protocol import layout as layouts
from orch_node.protocol.environment import ALWAYS, DATA, USER_PYTHON, interface_variables, override, python_path
from orch_node.protocol.values import ProtocolError
from orch_node.rank import environment as rank_environment
from orch_node.rank.checks import RankError, fail
from orch_node.rank.script import enter
from orch_node.standalone import facts

KILL_AFTER_SECONDS = 2.0
END_SECONDS = 5.0
# Without the user's files, which ranks do not read either: they often put another Python first in PATH.
SHELL_OPTIONS = {"bash": ("--norc",), "zsh": ("--no-rcs",), "fish": ("--no-config",)}
BASH_PROMPT = r"\u@\h:\w\$ "
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes of shells


def main(argv: list[str]) -> int:
    """Run the command, or a shell, and return its exit code."""
    parser = argparse.ArgumentParser(prog="node.py exec")
    parser.add_argument("--run", type=Path, help="folder of the run whose environment and working directory are used")
    parser.add_argument("--node", default="", help="name of this node in the run")
    parser.add_argument("--interface", default="", help="network interface of ranks, without a run")
    parser.add_argument("--path", default="", help="folder of MPI's programs, without a run")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args(argv)
    try:
        environment = command_environment(options)
    except (OSError, ProtocolError, RankError, ValueError) as error:
        fail(str(error))
    if not options.command:
        shell = environment.get("SHELL", "/bin/sh")
        kind = os.path.basename(shell)
        prompt = {"PS1": BASH_PROMPT} if kind == "bash" else {}
        os.execve(shell, [shell, *SHELL_OPTIONS.get(kind, ())], {**prompt, **environment})
    return run(options.command, environment)


def command_environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment of ranks without what differs between ranks; enter the working directory of a run.

    ORCH_RUN_DIR is left out, because the processes that have it are ended with the run.

    Raises:
        OSError: if a file of the run cannot be read, or the working directory cannot be used.
        ProtocolError: if a file of the run is damaged.
        RankError: if setvars.sh cannot be used.
        ValueError: if a variable of orch has an invalid value.
    """
    variables = {**facts.isa_variables(), **rank_environment.provisioned_environment()}
    if options.run:
        layout = layouts.parse((options.run / files.LAYOUT).read_text())
        if read_spec(options.run):
            fail("the ranks of this run are in containers. `docker exec` and `apptainer exec` run commands there.")
        planned = rank_environment.read_env_file(options.run / files.ENVIRONMENT)
        sourced = rank_environment.sourced_variables(layout.setvars, os.environ, layout.entry(options.node).repair)
        planned_for_node = {**planned, **layout.entry(options.node).env}
        settings = {**facts.isa_variables(), DATA: rank_environment.data_folder(options.run), **planned_for_node}
        variables = {**sourced, **override(settings, planned, rank_environment.provisioned_environment())}
        enter(layout.working_directory)
    else:
        variables = {**ALWAYS, **(interface_variables(options.interface) if options.interface else {}), **variables}
    environment = {**os.environ, **variables}
    environment |= python_path(environment)
    python = environment.get(USER_PYTHON, sys.executable)
    folders = (os.path.dirname(python), options.path, environment.get("PATH", os.defpath))
    environment["PATH"] = ":".join(dict.fromkeys(filter(None, folders)))
    environment.pop("ORCH_RUN_DIR", None)
    return rank_environment.with_node_settings(environment)


def run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run a command without input, and return its exit code as a shell does."""
    processes.keep_descendants()
    try:
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    input_ended = threading.Event()

    def end_with_input() -> None:
        os.read(0, 1)
        input_ended.set()
        processes.terminate(processes.descendants, term_seconds=KILL_AFTER_SECONDS, seconds=END_SECONDS)

    watcher = threading.Thread(target=end_with_input, daemon=True)
    watcher.start()
    code = child.wait()
    if input_ended.is_set():
        watcher.join()
    return code if code >= 0 else 128 - code
