"""Plan -> effects, step by step, through connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from orch_node.protocol import files
from orch_node.protocol.record import RunNode

from orchestrator.errors import ExecuteError
from orchestrator.files import pack_folder
from orchestrator.model.command import Command
from orchestrator.model.hostlist import fold
from orchestrator.planning.manifest import Object
from orchestrator.planning.plan import (
    ApplyObjects,
    Plan,
    PutFile,
    PutLocalFile,
    SendFile,
    SendFolder,
    StartRun,
    Step,
    SubmitScript,
)
from orchestrator.state import write_private

AT_ONCE = 32  # nodes that are written to at the same time


class Connection(Protocol):
    """What execute needs of a place where steps happen."""

    def put(self, path: str, content: str) -> None:
        """Write a file, whole or not at all. Raises ExecuteError."""

    def send(self, source: str, path: str) -> None:
        """Copy a file of this machine there. Raises ExecuteError."""

    def feed(self, argv: tuple[str, ...], content: bytes) -> None:
        """Run a program there that reads this to its end. Raises ExecuteError if it fails."""

    def start(self, command: Command, log: str) -> None:
        """Start a program that outlives this one. Raises ExecuteError."""


class Applier(Protocol):
    """What execute needs of an engine that takes objects."""

    def apply(self, made: Object) -> None:
        """Make an object, or leave one that is as it should be. Raises ExecuteError."""


class Submitter(Protocol):
    """What execute needs of an engine that takes scripts."""

    def submit(self, step: SubmitScript) -> None:
        """Hand it in. Raises ExecuteError with the engine's reason."""


def execute(
    plan: Plan,
    connections: Mapping[str, Connection],
    applier: Applier | None = None,
    submitter: Submitter | None = None,
) -> None:
    """Do the steps of a plan in order; the first that fails raises ExecuteError.

    `connections`: node -> how to reach it. `applier`: for plans with objects; `submitter`: for
    those with scripts.
    """
    for step in plan.steps:
        if isinstance(step, SubmitScript):
            assert submitter is not None
            submitter.submit(step)
        else:
            do(step, connections, applier)


def do(step: Step, connections: Mapping[str, Connection], applier: Applier | None) -> None:
    match step:
        case PutLocalFile(path=path, content=content):
            write_private(Path(path), content)
        case PutFile(at=at, path=path, content=content):
            everywhere(at, lambda node: connections[node].put(path, content))
        case SendFile(at=at, source=source, path=path):
            everywhere(at, lambda node: connections[node].send(source, path))
        case SendFolder():
            connections[step.at.node].feed(step.unpack(), pack_folder(Path(step.source)))
        case StartRun(command=command, run_dir=run_dir):
            connections[step.at.node].start(command, f"{run_dir}/{files.SUPERVISOR_LOG}")
        case ApplyObjects(objects=objects):
            assert applier is not None
            for made in objects:
                applier.apply(made)


def everywhere(nodes: tuple[RunNode, ...], act: Callable[[str], None]) -> None:
    """Do the same on all nodes at once. Raises one ExecuteError for all that failed."""
    failed: dict[tuple[str, str], list[str]] = {}
    with ThreadPoolExecutor(max_workers=min(AT_ONCE, len(nodes))) as pool:
        for node, done in [(node, pool.submit(act, node.node)) for node in nodes]:
            try:
                done.result()
            except ExecuteError as error:
                same = error.message.replace(node.node, "NODE"), error.hint
                failed.setdefault(same, []).append(node.node)
    if failed:
        told = [text.replace("NODE", fold(nodes)) for (text, _), nodes in failed.items()]
        raise ExecuteError(" ".join(told), hint=next(hint for _, hint in failed))
