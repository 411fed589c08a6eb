"""How a program is started on another node of a run: over ssh, or as a step of its job."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from orch_node import program

# `orch provision` writes it; in a pod, pod/mpi.py
SSH_CONFIG = Path(os.environ.get("ORCH_SSH_CONFIG", program.ROOT / "ssh" / "config"))
BY_STEP = "ORCH_BY_STEP"  # in the environment: the words that come before the node's name


def there(node: str, command: Sequence[str], carried: Sequence[str] = ()) -> list[str]:
    """`carried`: variables as NAME=VALUE, for ssh carries no environment."""
    if step := os.environ.get(BY_STEP):
        return [*shlex.split(step), f"--nodelist={node}", *command]
    words = ["env", *carried, *command] if carried else command
    return ["ssh", "-F", str(SSH_CONFIG), "--", node, shlex.join(words)]
