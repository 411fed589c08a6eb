"""Plan -> effects, step by step, through a Backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from orchestrator.command import Command
from orchestrator.plan import Plan, PutFile, SendFile, StartRun


class Backend(Protocol):
    """What execute needs of a place where steps happen."""

    def put(self, path: str, content: str) -> None:
        """Write a file, whole or not at all. Raises ExecuteError."""

    def send(self, source: str, path: str) -> None:
        """Copy a file of this machine there. Raises ExecuteError."""

    def start(self, command: Command, log: str) -> None:
        """Start a program that outlives this one. Raises ExecuteError."""


def execute(plan: Plan, backends: Mapping[str, Backend]) -> None:
    """Do the steps of a plan in order; the first that fails raises ExecuteError.

    `backends`: node -> how to reach it.
    """
    for step in plan.steps:
        backend = backends[step.at.node]
        match step:
            case PutFile(path=path, content=content):
                backend.put(path, content)
            case SendFile(source=source, path=path):
                backend.send(source, path)
            case StartRun(command=command, run_dir=run_dir):
                backend.start(command, f"{run_dir}/supervisor.log")
