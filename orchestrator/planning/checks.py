"""What a recipe, a stack and a backend ask of each other and of the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from orch_node.protocol.precision import AUTO, BF16
from packaging.version import Version

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.model.cluster import Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.process_group import Backend
from orchestrator.model.recipe import Recipe
from orchestrator.stacks.stack import Stack

NO_DDP_BACKEND_CCL = Version("5.1")  # of transformers


def check_recipe_fits(recipe: Recipe, stack: Stack) -> None:
    """Raises PlanError if the recipe is not meant for the stack."""
    if recipe.stacks and stack.name not in recipe.stacks:
        raise PlanError(
            f"Recipe '{recipe.name}' does not run on stack '{stack.name}'.",
            hint=did_you_mean(stack.name, recipe.stacks),
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
            f"--ddp_backend ccl: transformers {transformers} no longer takes it.",
            hint="Leave it out. orch makes the process group on ccl before the script starts, and the Trainer uses it.",
        )


def choose_preload(stack: Stack, nodes: tuple[Node, ...]) -> Choice[tuple[str, ...]]:
    """Libraries for LD_PRELOAD, as paths that are the same on every node."""
    found = {name: same_path(name, nodes) for name in stack.preload}
    paths = tuple(path for path in found.values() if path)
    missing = ", ".join(name for name, path in found.items() if not path)
    reason = f"not installed everywhere: {missing}" if missing else ""
    value = ", ".join(paths) or "nothing"
    return Choice(paths, (Decision(topic="preload", value=value, reason=reason),))


def same_path(library: str, nodes: tuple[Node, ...]) -> str | None:
    """Where all nodes have it; None if one has it elsewhere or not at all."""
    found = {node.facts.libraries.get(library) for node in nodes}
    return found.pop() if len(found) == 1 else None


def leave_preload(stack: Stack, why: str) -> Choice[tuple[str, ...]]:
    """In a container each rank looks for the libraries itself: the image's are not the node's."""
    value = ", ".join(stack.preload) or "nothing"
    return Choice((), (Decision(topic="preload", value=value, reason=why),))


def fit_stack(stack: Stack, backend: Backend, nodes: tuple[Node, ...]) -> Choice[Stack]:
    """The stack as the backend wants it, which all nodes have. Raises PlanError."""
    stack = stack.for_backend(backend.name)
    for node in nodes:
        stack.check(node)
    told = Decision(topic="stack", value=stack.name, reason=stack.summary)
    if stack.end_of_life is None:
        return Choice(stack, (told,))
    end = stack.end_of_life
    old = Decision(topic="warning", value=f"{stack.name} is {end.describe()}", reason=end.reason)
    return Choice(stack, (told, old))


def choose_workers(backend: Backend, asked: int) -> int:
    """Cores of each rank that oneCCL's workers have for themselves. Raises PlanError."""
    if asked and not backend.workers:
        raise PlanError(
            f"--ccl-workers {asked}, but the backend is {backend.name}.",
            hint="Only ccl has workers: --backend ccl, or leave --ccl-workers out.",
        )
    return asked


def check_ipex(recipe: Recipe, stack: Stack, *, precision: str, ranks: int) -> None:
    """Raises PlanError where --ipex cannot train, or would train wrongly."""
    if recipe.own_script:
        raise PlanError(
            f"--ipex is for recipes; {recipe.script} decides for itself.",
            hint="Call ipex.optimize in the script, and wrap its result in DistributedDataParallel.",
        )
    if not recipe.ipex:
        raise PlanError(
            f"--ipex: recipe '{recipe.name}' has no --use_ipex.",
            hint="Leave --ipex out. A recipe whose script takes that flag says `ipex = true` in its recipe.toml.",
        )
    precision = BF16 if precision == AUTO else precision  # the ranks may choose it
    stack.check_ipex(precision=precision, world_size=ranks)
