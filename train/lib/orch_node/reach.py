"""Start a program on another node of a run: over ssh, or with a program of the batch system."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from orch_node import program
from orch_node.login_shell import shell_command

SSH_CONFIG = program.ROOT / "ssh" / "config"  # written by `orch provision`
JOINING = "ORCH_JOINING"  # a variable with the command of the batch system that starts a launcher as part of the job
# A variable with a private folder of sockets: train/ssh lets launchers use the open connections of the agents, because
# a key exchange takes 0.1 s of processor time on both ends together.
SOCKETS = "ORCH_SSH_SOCKETS"
FOLDER_PREFIX = "orch-agents-"
NEW_SECONDS = 60.0  # a folder that is this new may have no lock yet
BY_STEP = "ORCH_BY_STEP"  # a variable with the command of the batch system, with {node} in it


def share_connections() -> None:
    """Let launchers use the connections that remote_command() opens with `is_shared`.

    The folder of the sockets is in /tmp because the path of a socket is short. Folders that a killed supervisor has
    left are removed.
    """
    if BY_STEP in os.environ:
        return
    with contextlib.suppress(OSError):
        for earlier_folder in Path("/tmp").glob(f"{FOLDER_PREFIX}*"):
            remove_unused(earlier_folder)
        folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir="/tmp")
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)  # until this process ends
        os.environ[SOCKETS] = folder


def remove_unused(folder: Path) -> None:
    """Remove a folder of sockets of this user unless a process holds its lock."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            is_new = time.time() - os.fstat(descriptor).st_mtime < NEW_SECONDS
            if os.fstat(descriptor).st_uid == os.getuid() and not is_new:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


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
