"""Stacks: read the matrix, check environments, report versions."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.files import STANDALONE, render_template
from orchestrator.load.clusters import local_facts
from orchestrator.model.decision import Finding
from orchestrator.stacks.compatibility import Environment, Machine, Shell, mismatches, nearest_to_torch, reference_stack
from orchestrator.stacks.stack import BINDINGS, TORCH, Stack, same_version

DISTRIBUTION = "orch-train"  # on PyPI; `orch` is the command
SHELL_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "CCL_WORKER_COUNT", "I_MPI_ROOT", "LD_LIBRARY_PATH")


def describe_versions() -> list[str]:
    """Return the versions of orch, the installed stack and Python, one per line."""
    try:
        orch_version = version(DISTRIBUTION)
    except PackageNotFoundError:
        orch_version = "from a folder that is not installed"
    return [
        f"orch {orch_version}",
        f"stack: {describe_stack(dict(local_facts(sys.executable).packages))}",
        f"Python: {platform.python_version()} ({sys.executable})",
    ]


def describe_facts(stack: Stack, state: Sequence[str]) -> str:
    """Return all recorded facts about a stack, each with its source, and its state on this machine."""
    return render_template("stack.txt.j2", stack=stack, state=state, bindings_package=BINDINGS).rstrip("\n")


def describe_stack(packages: dict[str, str]) -> str:
    """Return the stack of these packages, by their torch, or how to install one."""
    torch = packages.get(TORCH)
    if torch is None:
        return "none (`orch setup` installs one)"
    name = next((stack.name for stack in load.all_stacks() if same_version(torch, stack.torch)), "unknown to orch")
    ccl = f", ccl {packages[BINDINGS]}" if BINDINGS in packages else ""
    return f"{name} (torch {torch}{ccl})"


def this_machine() -> Machine:
    return Machine(python=platform.python_version(), system=platform.system(), machine=platform.machine())


def check(
    environments: Sequence[Environment], expected: Stack | None
) -> list[tuple[Environment, Stack, tuple[Finding, ...]]]:
    """Return each environment, the expected stack or a similar one, and the mismatches."""
    stacks, incompatibilities, checked = load.all_stacks(), load.incompatibilities(), []
    for env in environments:
        torch = env.version(TORCH)
        similar = nearest_to_torch(stacks, torch) if torch else reference_stack(env, stacks)
        checked.append((env, expected or similar, mismatches(env, stacks, incompatibilities, expected)))
    return checked


def environment_of(python: str, *, shell: bool) -> Environment:
    """Return the environment of an interpreter on this machine.

    Args:
        python: the interpreter, a path or a name on PATH.
        shell: whether to include the variables of the current shell.

    Raises:
        RequestError: if the interpreter does not start.
    """
    program = shutil.which(python) or python
    probe = [program, "-I", "-S", str(STANDALONE / "facts.py"), str(Path(program).parent.parent)]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, errors="replace")
        reason = (done.stderr.strip() or f"exit code {done.returncode}, without output of Python").splitlines()[-1]
        facts = json.loads(done.stdout)
        return Environment(
            name=program,
            python=facts["python"],
            packages=facts["packages"],
            shell=this_shell() if shell else None,
            for_gpus=bool(facts["gpus"]),
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = str(error.strerror) if isinstance(error, OSError) else reason
        raise RequestError.about("unreadable-environment", python=python, reason=reason) from None


def environments_of(inventory: str, notify: Callable[[str], None]) -> list[Environment]:
    """Return the recorded environments of an inventory's nodes, with a warning per damaged record."""
    cluster = load.cluster(inventory)
    for problem in cluster.damaged.values():
        notify(f"warning: {problem}")
    return [
        Environment(name=name, python=facts.python, packages=facts.packages, for_gpus=bool(facts.gpus))
        for name, facts in ((node.name, node.facts) for node in cluster.nodes)
    ]


def this_shell() -> Shell:
    """Return what ranks would see that are started from the current shell."""
    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    libraries = (Path(folder, "libmpi.so.12") for folder in folders)
    return Shell(
        variables={name: os.environ[name] for name in SHELL_VARIABLES if name in os.environ},
        mpirun=shutil.which("mpirun"),
        libmpi=next((str(path) for path in libraries if path.exists()), None),
    )
