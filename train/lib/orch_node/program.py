"""The command of orch's programs on nodes: Python, train/node.py and a subcommand."""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2] / "node.py"
# A file that every installation has below the folder of its node.py, and a user's program does not.
MARK = Path("lib", "orch_node", "program.py")
ROOT = PROGRAM.parent.parent  # on a node: the folder that `orch provision` fills


def command(subcommand: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command of a subcommand of node.py."""
    return [python, str(PROGRAM), subcommand, *arguments]
