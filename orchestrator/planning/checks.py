"""Checks that a recipe, a stack, a backend and the nodes fit together."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from orch_node.protocol.precision import AUTO, BF16
from packaging.version import Version

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.process_group import Backend
from orchestrator.model.recipe import Recipe
from orchestrator.stacks.stack import Stack

NO_DDP_BACKEND_CCL = Version("5.1")  # of transformers


def check_recipe_fits(recipe: Recipe, stack: Stack) -> None:
    """Raise PlanError if the recipe does not support the stack."""
    if recipe.stacks and not any(fnmatchcase(stack.name, pattern) for pattern in recipe.stacks):
        raise PlanError(
            f"Recipe '{recipe.name}' does not run on stack '{stack.name}'.",
            hint=f"It runs on {', '.join(recipe.stacks)}; your own scripts run on all stacks.",
        )


def check_script_arguments(arguments: Sequence[str], stack: Stack) -> None:
    """Refuse arguments with which a script on the stack's packages is known to fail.

    Raises:
        PlanError: if a script with the Trainer would end at once.
    """
    parts = " ".join(arguments).replace("=", " ").split()
    transformers = stack.requirements.get("transformers")
    is_requested = ("--ddp_backend", "ccl") in pairwise(parts)
    if is_requested and transformers and Version(transformers) >= NO_DDP_BACKEND_CCL:
        raise PlanError(
            f"--ddp_backend ccl: transformers {transformers} does not accept it.",
            hint="Omit it: orch creates the process group with ccl before the script starts, and the Trainer uses it.",
        )


def choose_preload(stack: Stack, nodes: tuple[Node, ...], software: str = "") -> Choice[tuple[str, ...]]:
    """Return the libraries for LD_PRELOAD whose paths are the same on every node.

    Args:
        stack: the stack, which names the libraries.
        nodes: the nodes.
        software: where each rank finds the libraries itself, such as `the image has`; '' if they are preloaded by path.
    """
    if software:
        value = ", ".join(stack.preload) or "nothing"
        reason = f"if {software} them" if stack.preload else ""
        return Choice((), (Decision(topic="preload", value=value, reason=reason),))
    first = nodes[0].facts.libraries
    is_common = {name: all(node.facts.libraries.get(name) == first.get(name) for node in nodes) for name in first}
    paths = tuple(first[name] for name in stack.preload if is_common.get(name))
    missing = ", ".join(name for name in stack.preload if not is_common.get(name))
    reason = f"not installed everywhere: {missing}" if missing else ""
    value = ", ".join(paths) or "nothing"
    return Choice(paths, (Decision(topic="preload", value=value, reason=reason),))


def fit_stack(stack: Stack, backend: Backend, nodes: tuple[Node, ...]) -> Choice[Stack]:
    """Return the stack as the backend needs it.

    Raises:
        PlanError: if a node lacks a part of it.
    """
    stack = stack.for_backend(backend.name)
    for node in nodes:
        stack.check(node)
    decision = Decision(topic="stack", value=stack.name, reason=stack.summary)
    if stack.end_of_life is None:
        return Choice(stack, (decision,))
    end = stack.end_of_life
    warning = Decision(topic="warning", value=f"{stack.name} is {end.describe()}", reason=end.reason)
    return Choice(stack, (decision, warning))


def check_workers(backend: Backend, workers: int) -> None:
    """Raise PlanError if cores are reserved for workers and the backend has none."""
    if not backend.workers:
        raise PlanError(
            f"--ccl-workers {workers}, but the backend is {backend.name}.",
            hint="Only ccl has workers: use --backend ccl, or omit --ccl-workers.",
        )


def check_ipex(recipe: Recipe, stack: Stack, *, precision: str) -> None:
    """Raise PlanError if training with --ipex is impossible or gives wrong results."""
    if recipe.own_script:
        raise PlanError(
            f"--ipex applies to recipes only; {recipe.script} is your own script.",
            hint="Call ipex.optimize in the script, and wrap its result in DistributedDataParallel.",
        )
    if not recipe.ipex:
        raise PlanError(
            f"--ipex: recipe '{recipe.name}' does not accept --use_ipex.",
            hint="Omit --ipex. A recipe whose script accepts the flag has `ipex = true` in its recipe.toml.",
        )
    precision = BF16 if precision == AUTO else precision  # the ranks may choose it
    stack.check_ipex(precision)
