"""Plan -> effects, step by step, through a Backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from orchestrator.command import Command
from orchestrator.errors import ExecuteError
from orchestrator.kube.job import Object
from orchestrator.names import fold
from orchestrator.plan import ApplyObjects, Plan, PutFile, SendFile, StartRun, Step, Target

AT_ONCE = 32  # nodes that are written to at the same time


class Backend(Protocol):
    """What execute needs of a place where steps happen."""

    def put(self, path: str, content: str) -> None:
        """Write a file, whole or not at all. Raises ExecuteError."""

    def send(self, source: str, path: str) -> None:
        """Copy a file of this machine there. Raises ExecuteError."""

    def start(self, command: Command, log: str) -> None:
        """Start a program that outlives this one. Raises ExecuteError."""


class Applier(Protocol):
    """What execute needs of a Kubernetes cluster."""

    def apply(self, made: Object) -> None:
        """Make an object, or leave one that is as it should be. Raises ExecuteError."""


def execute(plan: Plan, backends: Mapping[str, Backend], cluster: Applier | None = None) -> None:
    """Do the steps of a plan in order; the first that fails raises ExecuteError.

    `backends`: node -> how to reach it. `cluster`: for plans with objects of Kubernetes.
    """
    for step in plan.steps:
        do(step, backends, cluster)


def do(step: Step, backends: Mapping[str, Backend], cluster: Applier | None) -> None:
    match step:
        case PutFile(at=at, path=path, content=content):
            everywhere(at, lambda node: backends[node].put(path, content))
        case SendFile(at=at, source=source, path=path):
            everywhere(at, lambda node: backends[node].send(source, path))
        case StartRun(command=command, run_dir=run_dir):
            backends[step.at.node].start(command, f"{run_dir}/supervisor.log")
        case ApplyObjects(objects=objects):
            assert cluster is not None
            for made in objects:
                cluster.apply(made)


def everywhere(targets: tuple[Target, ...], act: Callable[[str], None]) -> None:
    """Do the same on all nodes at once. Raises one ExecuteError for all that failed."""
    failed: dict[tuple[str, str], list[str]] = {}
    with ThreadPoolExecutor(max_workers=min(AT_ONCE, len(targets))) as pool:
        for target, done in [(target, pool.submit(act, target.node)) for target in targets]:
            try:
                done.result()
            except ExecuteError as error:
                same = error.message.replace(target.node, "NODE"), error.hint
                failed.setdefault(same, []).append(target.node)
    if failed:
        told = [text.replace("NODE", fold(nodes)) for (text, _), nodes in failed.items()]
        raise ExecuteError(" ".join(told), hint=next(hint for _, hint in failed))
