"""How orch calls pip: without modules of the current folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from orchestrator.errors import ExecuteError
from orchestrator.model.platform import Platform
from orchestrator.stacks.stack import Stack


def command(*arguments: str) -> list[str]:
    """Return the command line of pip, for the Python that runs orch."""
    # -I: `python -m pip` would import a pip.py, or a folder pip, of the current folder.
    return [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", *arguments]


def run_pip(
    *arguments: str,
    variables: Mapping[str, str] = MappingProxyType({}),
    problem: str = "pip cannot download the wheels of the stack",
) -> None:
    """Run pip.

    Raises:
        ExecuteError: with the errors that pip printed.
    """
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, stdin=subprocess.DEVNULL, env=os.environ | variables
    )
    if done.returncode == 0:
        return
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    reason = " ".join(errors or done.stderr.strip().splitlines()[-3:])
    raise ExecuteError(
        f"{problem}: {reason}",
        hint="Configure an index that has them (`pip config list` shows pip's settings), or name a folder of "
        "wheels: --find-links.",
    )


def index_options(stack: Stack) -> list[str]:
    """Return the options for a stack's indexes, if one of them has packages that no index else has."""
    options = [option for index in stack.indexes for option in (f"--{index.option}", index.url)]
    return options if any(index.only_there for index in stack.indexes) else []


def platform_options(platform: Platform) -> list[str]:
    """Return the options that make pip select what it would select on the nodes."""
    options = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", platform.python]
    for abi in (f"cp{platform.python.replace('.', '')}", "abi3", "none"):
        options += ["--abi", abi]
    return options + [word for tag in platform_tags(platform) for word in ("--platform", tag)]


def platform_tags(platform: Platform) -> Iterator[str]:
    """Yield the platform tags of wheels that run on a platform, the best first (PEP 600).

    `packaging.tags` lists those of this machine's C library only.
    """
    _, _, minor = platform.libc.partition(".")
    for older in range(int(minor), 4, -1):
        yield f"manylinux_2_{older}_{platform.machine}"
        legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}.get(older)
        if legacy:
            yield f"{legacy}_{platform.machine}"
    yield f"linux_{platform.machine}"
