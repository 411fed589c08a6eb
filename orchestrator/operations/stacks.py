"""`orch stacks`: read the matrix, look at environments, fetch wheels."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.model.cluster import Node
from orchestrator.paths import STANDALONE
from orchestrator.stacks.compatibility import Mismatch, mismatches, reference_stack
from orchestrator.stacks.installed import Environment, Shell
from orchestrator.stacks.matrix import Platform, nearest_to_torch
from orchestrator.stacks.stack import TORCH, Stack

VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "CCL_WORKER_COUNT", "I_MPI_ROOT", "LD_LIBRARY_PATH")


def local_platform() -> Platform:
    return Platform(python=platform.python_version(), system=platform.system(), machine=platform.machine())


def expected_stack(name: str | None, backend: str | None) -> Stack | None:
    if name is None:
        return None
    return load.stack(name).for_listed_backend(backend) if backend else load.stack(name)


def check(
    environments: Sequence[Environment], asked: Stack | None
) -> list[tuple[Environment, Stack, tuple[Mismatch, ...]]]:
    """Each environment, the stack it was measured by, and what does not fit."""
    stacks = load.all_stacks()
    return [(env, asked or nearest_stack(env, stacks), mismatches(env, stacks, asked)) for env in environments]


def nearest_stack(environment: Environment, stacks: Sequence[Stack]) -> Stack:
    """That of its torch; without torch, that of its IPEX or bindings."""
    torch = environment.version(TORCH)
    return nearest_to_torch(stacks, torch.public) if torch else reference_stack(environment, stacks)


def environment_of(python: str, *, shell: bool) -> Environment:
    """The environment of an interpreter of this machine. Raises RequestError."""
    program = shutil.which(python)
    if program is None:
        raise RequestError(
            f"--python {python}: there is no such program.", hint="Name an interpreter, such as .venv/bin/python."
        )
    prefix = Path(program).parent.parent
    command = [program, "-I", "-S", str(STANDALONE / "facts.py"), str(prefix)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise RequestError(
            f"--python {python}: its facts cannot be gathered: {words[0]}",
            hint="Name an interpreter of Python 3 that starts, such as .venv/bin/python.",
        )
    facts = json.loads(done.stdout)
    return Environment(
        name=program,
        python=facts["python"],
        packages=facts["packages"],
        shell=this_shell() if shell else None,  # nosec
    )


def environments_of(inventory: str, tell: Callable[[str], None]) -> list[Environment]:
    """Those of the inventory's nodes, by the facts recorded about them; `tell` gets what cannot be
    read."""
    cluster = load.cluster(inventory)
    for words in cluster.damaged.values():
        tell(f"warning: {words}")
    return [environment_of_node(node) for node in cluster.nodes]


def environment_of_node(node: Node) -> Environment:
    return Environment(name=node.name, python=node.facts.python, packages=node.facts.packages)


def this_shell() -> Shell:
    """What ranks would find that are started from the shell that orch was started from."""
    return Shell(
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        mpirun=shutil.which("mpirun"),
        libmpi=find_library("libmpi.so.12", os.environ.get("LD_LIBRARY_PATH", "")),
    )


def find_library(name: str, search_path: str) -> str | None:
    found = (Path(folder) / name for folder in search_path.split(":") if folder)
    return next((str(path) for path in found if path.exists()), None)
