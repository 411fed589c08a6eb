"""Start a program on another node of a run: over ssh, or with a program of the batch system."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from orch_node import program
from orch_node.login_shell import shell_command

# Written by `orch provision`, or in a pod by pod/mpi.py.
SSH_CONFIG = Path(os.environ.get("ORCH_SSH_CONFIG", program.ROOT / "ssh" / "config"))
JOINING = "ORCH_JOINING"  # a variable with the command of the batch system that starts a launcher as part of the job
BY_STEP = "ORCH_BY_STEP"  # a variable with the command of the batch system, with {node} in it


def remote_command(node: str, command: Sequence[str], variables: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a command on a node. Over ssh, its output follows the start marker.

    Args:
        node: the node.
        command: what to run there.
        variables: NAME=VALUE each; ssh does not pass the environment on.
    """
    if step := os.environ.get(BY_STEP):
        return [word.replace("{node}", node) for word in shlex.split(step)] + [*command]
    remote = ["env", *variables, *command] if variables else command
    return ["ssh", "-F", str(SSH_CONFIG), "--", node, shell_command(remote)]
