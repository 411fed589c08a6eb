"""The syntax trees of source files, which several tests search."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree, the module first."""
    return tuple(ast.walk(ast.parse(path.read_text())))
