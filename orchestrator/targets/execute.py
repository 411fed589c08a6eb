"""Do the steps of a plan through connections to its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from orch_node.protocol import files
from orch_node.protocol.record import RunNode

from orchestrator.errors import ExecuteError
from orchestrator.files import pack_files, pack_folder
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
    SendProject,
    StartRun,
    Step,
    SubmitScript,
)
from orchestrator.state import write_private

MAX_PARALLEL_NODES = 32


class Connection(Protocol):
    """A host on which steps are done."""

    def put(self, path: str, content: str) -> None:
        """Write a file, whole or not at all; raise ExecuteError if that fails."""

    def send(self, source: str, path: str) -> None:
        """Copy a file of this machine to the host; raise ExecuteError if that fails."""

    def feed(self, argv: tuple[str, ...], content: bytes) -> None:
        """Run a program on the host with this input; raise ExecuteError if it fails."""

    def start(self, command: Command, log: str) -> None:
        """Start a program that continues after this one; raise ExecuteError if it cannot be started."""

    def close(self) -> None:
        """Close the connection, which ends what other threads do with it."""


class Applier(Protocol):
    """An engine that holds objects, such as a Kubernetes cluster."""

    def apply(self, manifest: Object) -> None:
        """Create an object, or update it to match its manifest; raise ExecuteError if that fails."""


class Submitter(Protocol):
    """An engine that runs submitted scripts, such as Slurm."""

    def submit(self, step: SubmitScript) -> None:
        """Submit a script; raise ExecuteError with the engine's reason if it is rejected."""


def execute(
    plan: Plan,
    connections: Mapping[str, Connection],
    applier: Applier | None = None,
    submitter: Submitter | None = None,
) -> None:
    """Do the steps of a plan in order, up to the first that fails.

    Args:
        plan: the plan.
        connections: a connection to each node of the plan, by the name of the node.
        applier: the engine for plans that create objects.
        submitter: the engine for plans that submit scripts.

    Raises:
        ExecuteError: if a step fails.
    """
    for step in plan.steps:
        if isinstance(step, SubmitScript):
            assert submitter is not None
            submitter.submit(step)
        else:
            do(step, connections, applier)


def do(step: Step, connections: Mapping[str, Connection], applier: Applier | None) -> None:
    """Do one step that is not the submission of a script."""
    match step:
        case PutLocalFile(path=path, content=content):
            write_private(Path(path), content)
        case PutFile(nodes=nodes, path=path, content=content):
            on_all(nodes, connections, lambda connection: connection.put(path, content))
        case SendFile(nodes=nodes, source=source, path=path):
            on_all(nodes, connections, lambda connection: connection.send(source, path))
        case SendFolder():
            connections[step.node.node].feed(step.unpack(), pack_folder(Path(step.source)))
        case SendProject(nodes=nodes, source=source, files=names):
            archive = packed(Path(source), names)
            on_all(nodes, connections, lambda connection: connection.feed(step.unpack(), archive))
        case StartRun(command=command, run_dir=run_dir):
            connections[step.node.node].start(command, f"{run_dir}/{files.SUPERVISOR_LOG}")
        case ApplyObjects(objects=objects):
            assert applier is not None
            for manifest in objects:
                applier.apply(manifest)


def packed(folder: Path, names: tuple[str, ...]) -> bytes:
    """Return a project as an archive.

    Raises:
        ExecuteError: if a file cannot be read.
    """
    try:
        return pack_files(folder, names)
    except OSError as error:
        raise ExecuteError(
            f"{error.filename or folder} cannot be read: {error.strerror}.",
            hint="The project has changed; start again.",
        ) from None


def on_all(
    nodes: tuple[RunNode, ...], connections: Mapping[str, Connection], action: Callable[[Connection], None]
) -> None:
    """Call an action for all nodes in parallel.

    Raises:
        ExecuteError: if it fails for any node; the message groups the nodes by their reason.
        KeyboardInterrupt: if Ctrl-C is pressed; the connections are closed, so that no action continues.
    """
    failed_nodes: dict[str, list[str]] = {}
    hints: list[str] = []
    with ThreadPoolExecutor(max_workers=min(MAX_PARALLEL_NODES, len(nodes))) as pool:
        try:
            for node, future in [(node, pool.submit(action, connections[node.node])) for node in nodes]:
                try:
                    future.result()
                except ExecuteError as error:
                    reason = error.message.removesuffix(".").replace(node.node, "NODE")
                    failed_nodes.setdefault(reason, []).append(node.node)
                    hints.append(error.hint)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for node in nodes:
                connections[node.node].close()
            raise
    if failed_nodes:
        messages = [reason.replace("NODE", fold(nodes)) for reason, nodes in failed_nodes.items()]
        raise ExecuteError(f"{'; '.join(messages)}.", hint=hints[0])
