"""Reach the host that has the batch system's programs, and query its stack."""

from __future__ import annotations

import contextlib
from pathlib import Path

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.load.clusters import local_facts
from orchestrator.model.cluster import Facts
from orchestrator.model.printable import LOGIN_SCRIPT_HINT
from orchestrator.targets.batch.scheduler import Scheduler
from orchestrator.targets.batch.settings import BatchSettings
from orchestrator.targets.batch.system import ONE_RANK, BatchSystem
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.interpreter import FACTS_SECONDS, query_interpreter


def python_hint(system: BatchSystem) -> str:
    """Return how to name the interpreter of the nodes."""
    return (
        f"Use {system.flag} root=FOLDER with a folder that `orch provision --on {system.name}` has filled, or "
        "--python with an interpreter that has torch. Both must be on a shared file system."
    )


def host_at(login: str) -> Local | Ssh:
    """Return the connection to a host.

    Args:
        login: the host as ~/.ssh/config knows it; '' for this machine.
    """
    return Ssh(login, None) if login else Local()


def query_host(system: BatchSystem, login: str, python: str, *, is_user_python: bool) -> tuple[Facts, str]:
    """Return the facts of the host with the batch system's programs and of its stack, and the user's home folder there.

    Args:
        system: the batch system.
        login: the host; '' for this machine.
        python: the interpreter.
        is_user_python: whether it is neither that of a stack nor the one that runs orch.

    Raises:
        RequestError: if the interpreter does not exist.
        ExecuteError: if the host does not respond as expected.
    """
    if not login:
        if not Path(python).exists():
            raise RequestError(f"{python} does not exist.", hint=python_hint(system))
        if not is_user_python:
            return local_facts(python), str(Path.home())
        return query_interpreter(Local(), "this machine", python, python_hint(system)), str(Path.home())
    with contextlib.closing(Ssh(login, None)) as host:
        home = host.capture(("sh", "-c", 'printf %s "$HOME"'), seconds=FACTS_SECONDS)
        if not home.out.startswith("/"):
            raise ExecuteError(
                f"{host.node}: the output of a command there begins with {home.out.strip()[:60]!r}, "
                "which that command does not print.",
                hint=LOGIN_SCRIPT_HINT,
            )
        return query_interpreter(host, host.node, python, python_hint(system)), home.out


def query_default_ranks(settings: BatchSettings) -> tuple[int, str]:
    """Return the ranks on each node for --ppn auto, with the reason; one rank if the system does not respond."""
    with contextlib.closing(host_at(settings.login or "")) as host:
        programs = Scheduler(settings.system, host, settings.options.get("clusters", ""))
        try:
            return settings.system.default_ranks(programs, settings.options, settings.held)
        except ExecuteError:
            return ONE_RANK
