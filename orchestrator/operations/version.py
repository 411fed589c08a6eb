"""What `orch --version` tells: orch, the stack that is installed beside it, and Python."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from orchestrator import load
from orchestrator.load.clusters import local_facts
from orchestrator.stacks.stack import BINDINGS, TORCH, same_version

DISTRIBUTION = "orch-train"  # on PyPI; `orch` is the command


def own_version() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "from a folder that is not installed"


def lines() -> list[str]:
    return [
        f"orch {own_version()}",
        f"stack: {stack_here(dict(local_facts(sys.executable).packages))}",
        f"Python: {platform.python_version()} ({sys.executable})",
    ]


def stack_here(packages: dict[str, str]) -> str:
    """The stack that these packages are of, by its torch; or what to do where there is none."""
    torch = packages.get(TORCH)
    if torch is None:
        return "none (`orch setup` installs one)"
    found = next((one for one in load.all_stacks() if same_version(torch, one.torch)), None)
    name = found.name if found else "none of orch's"
    ccl = f", ccl {packages[BINDINGS]}" if BINDINGS in packages else ""
    return f"{name} (torch {torch}{ccl})"
