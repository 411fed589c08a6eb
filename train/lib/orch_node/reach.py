"""Start a program on another node of a run: over ssh, or with a program of the batch system."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence

from orch_node import program
from orch_node.login_shell import shell_command

SSH_CONFIG = program.ROOT / "ssh" / "config"  # written by `orch provision`
JOINING = "ORCH_JOINING"  # a variable with the command of the batch system that starts a launcher as part of the job
# A variable with a private folder of sockets: train/ssh lets launchers use the open connections of the agents, because
# a key exchange takes 0.1 s of processor time on both ends together.
SOCKETS = "ORCH_SSH_SOCKETS"
BY_STEP = "ORCH_BY_STEP"  # a variable with the command of the batch system, with {node} in it


def share_connections() -> None:
    """Let launchers use the connections that remote_command() opens with `is_shared`."""
    if BY_STEP not in os.environ:
        with contextlib.suppress(OSError):
            folder = tempfile.mkdtemp(prefix="orch-agents-", dir="/tmp")
            os.environ[SOCKETS] = folder


def end_sharing() -> None:
    """Remove the folder of the sockets."""
    if folder := os.environ.pop(SOCKETS, ""):
        shutil.rmtree(folder, ignore_errors=True)


def remote_command(
    node: str, command: Sequence[str], variables: Sequence[str] = (), *, is_shared: bool = False
) -> list[str]:
    """Return the command that runs a command on a node. Over ssh, its output follows the start marker.

    Args:
        node: the node.
        command: what to run there.
        variables: NAME=VALUE each; ssh does not pass the environment on.
        is_shared: whether launchers may use the connection while the command runs.
    """
    if step := os.environ.get(BY_STEP):
        return [word.replace("{node}", node) for word in shlex.split(step)] + [*command]
    remote = ["env", *variables, *command] if variables else command
    sockets = os.environ.get(SOCKETS, "") if is_shared else ""
    options = ["-o", "ControlMaster=auto", "-o", f"ControlPath={sockets}/%C"] if sockets else []
    return ["ssh", "-F", str(SSH_CONFIG), *options, "--", node, shell_command(remote)]
