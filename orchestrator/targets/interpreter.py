"""Query a Python interpreter for the facts of its host and of its packages."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from orch_node.protocol import values

from orchestrator import load
from orchestrator.errors import ExecuteError, PlanError, RequestError
from orchestrator.files import STANDALONE
from orchestrator.load.records import InvalidResponse, validate
from orchestrator.model.cluster import UserPython
from orchestrator.model.facts import Facts
from orchestrator.model.printable import LOGIN_SCRIPT_HINT
from orchestrator.planning.request import TrainRequest
from orchestrator.stacks.compatibility import Environment, mismatches
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import Local

REPAIR = "restore what {} had, or start the run again"  # a user's environment, in which orch installs nothing
PYTHON_HINT = "--python and --venv name an environment that is at the same path on every node."
FACTS_SECONDS = 120.0  # The first read from a shared file system can be slow.
OLDEST_PYTHON = (3, 9)  # of orch's rank wrapper
MINOR_VERSION = re.compile(r"(\d+)\.(\d+)", re.ASCII)
# Exit codes of a shell for a program that it cannot run.
PROBLEMS = {126: "cannot be executed", 127: "does not exist"}


def path_of(request: TrainRequest, *, this_machine: bool) -> str:
    """Return the absolute path of the interpreter of --python.

    Args:
        request: the request, with its path, or on this machine also its name in PATH.
        this_machine: whether the path is one of this machine.

    Raises:
        RequestError: if there is no such interpreter, or its path on other machines is relative.
        PlanError: if ranks run in containers.
    """
    python = str(request.python)
    if request.image:
        raise PlanError.about("python-of-image", python=python)
    if this_machine:
        program = shutil.which(python)
        if program is None:
            raise RequestError.about("missing-python", python=python)
        return str(Path(program).parent.resolve() / Path(program).name)  # the Python of a virtual environment is a link
    if not python.startswith("/"):
        raise RequestError.about("relative-python", python=python, advice=PYTHON_HINT)
    return python


def user_python(path: str, facts: Facts, bindings: str = "", *, for_gpus: bool = False) -> UserPython:
    """Return a user's interpreter, with the mismatches of its packages.

    Args:
        path: its path.
        facts: the facts that it reports.
        bindings: the folder of the bindings that are added to it.
        for_gpus: whether the requested backend is for GPUs.
    """
    env = Environment(name=path, python=facts.python, packages=facts.packages, for_gpus=for_gpus or bool(facts.gpus))
    return UserPython(
        path=path, bindings=bindings, mismatches=mismatches(env, load.all_stacks(), load.incompatibilities())
    )


def query_interpreter(host: Local | Ssh, name: str, python: str, hint: str) -> Facts:
    """Return the facts of a host, with the packages that an interpreter there imports.

    Args:
        host: the connection.
        name: the name of the host.
        python: the interpreter.
        hint: what to do if it does not exist or does not run.

    Raises:
        RequestError: if the interpreter does not exist.
        PlanError: if it is too old for ranks.
        ExecuteError: if it fails, or its output is not what it prints.
    """
    program = (STANDALONE / "facts.py").read_text(encoding="utf-8")
    result = host.capture((python, "-I", "-c", program), seconds=FACTS_SECONDS)
    if result.code in PROBLEMS:
        raise RequestError(f"{python} {PROBLEMS[result.code]} on {name}.", hint=hint)
    if result.code != 0:
        raise ExecuteError(f"{name}: {python} does not run: {result.err.strip()[-300:]}", hint=hint)
    source = f"the facts of {name}"
    try:
        facts = validate(Facts, values.loads(result.out, source), source)
    except (values.ProtocolError, InvalidResponse) as error:
        raise ExecuteError(f"{name}: {error}", hint=LOGIN_SCRIPT_HINT) from None
    version = MINOR_VERSION.match(facts.python)
    if not version or tuple(map(int, version.groups())) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise PlanError(f"{name}: {python} is Python {facts.python}.", hint=f"Ranks need Python {oldest} or newer.")
    return facts
