"""Run a user's commands on the nodes of a cluster or a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.load.clusters import find_inventory
from orchestrator.model.hosts import Nodes, ranges
from orchestrator.operations.runs import find
from orchestrator.targets import registry
from orchestrator.targets.interface import CommandEnd, NodeCommands, Notify


def find_commands(name: str, nodes: Nodes | None, *, stack: str, runs_dir: Path, notify: Notify) -> NodeCommands:
    """Return the nodes of an inventory or a run on which commands can run.

    Args:
        name: the name or path of an inventory, the ID of a run, or `last`.
        nodes: selects some of the nodes; None means all.
        stack: the stack that provides Python; a run has its own.
        runs_dir: the folder of all run folders.
        notify: receives warnings.

    Raises:
        RequestError: if there is no such inventory, run or node, or another tool runs commands there.
    """
    target = registry.target_at(name)
    if target.name != registry.SSH:
        return target.commands(name, nodes, stack)
    if name != "last":
        try:
            find_inventory(name)
        except RequestError:
            if not name[:1].isdigit() or "/" in name:  # the ID of a run begins with its date
                raise
        else:
            return target.commands(name, nodes, stack)
    return find(runs_dir, name, None, notify).commands(nodes)


def check_ends(ends: Iterable[CommandEnd]) -> None:
    """Check that a command has succeeded on all nodes.

    Raises:
        ExecuteError: if it has not; the message groups the nodes by their exit codes.
    """
    failures: dict[str, list[str]] = {}
    hints = []
    for end in ends:
        if end.code is None:
            problem = end.problem.removesuffix(".").removeprefix(end.node).lstrip(": ")
            failures.setdefault(problem, []).append(end.node)
            hints.append(end.hint)
        elif end.code != 0:
            failures.setdefault(f"exit code {end.code}", []).append(end.node)
    if failures:
        groups = (f"{','.join(ranges(tuple(nodes)))}: {reason}" for reason, nodes in failures.items())
        raise ExecuteError(f"{'; '.join(groups)}.", hint=next(iter(hints), ""))
