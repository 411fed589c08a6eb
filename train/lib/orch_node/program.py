"""How orch starts a program of its own on a node: this Python, train/node.py and a subcommand."""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2] / "node.py"
# Of any installation, below the folder of its node.py: what no program of a user's has there.
MARK = Path("lib", "orch_node", "program.py")
ROOT = PROGRAM.parent.parent  # on a node: what `orch provision` fills


def command(subcommand: str, *words: str, python: str = sys.executable) -> list[str]:
    return [python, str(PROGRAM), subcommand, *words]
