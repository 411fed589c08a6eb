"""The choices of a training run, each with the decision that tells it."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.backend import Backend
from orchestrator.cluster import Node
from orchestrator.errors import PlanError, did_you_mean
from orchestrator.layout import Layout, unused_cores
from orchestrator.names import fold
from orchestrator.network import Link
from orchestrator.plan import Decision
from orchestrator.recipe import Recipe
from orchestrator.stack import Stack


def check_recipe_fits(recipe: Recipe, stack: Stack) -> None:
    """Raises PlanError if the recipe is not meant for the stack."""
    if recipe.stacks and stack.name not in recipe.stacks:
        raise PlanError(
            f"Recipe '{recipe.name}' does not run on stack '{stack.name}'.",
            hint=did_you_mean(stack.name, recipe.stacks),
        )


def choose_precision(
    recipe: Recipe,
    nodes: tuple[Node, ...],
    *,
    asked: str | None,
    allow_slow: bool,
    launched: bool = False,
) -> Decision:
    """bf16, fp32 or, for an own script, its own. Raises PlanError.

    BF16 without instructions for it is refused unless `allow_slow`. `launched`: by accelerate,
    which tells the Accelerator of an own script its precision.
    """
    if recipe.own_script and launched and asked:
        why = "what accelerate tells the script's Accelerator"
        if asked not in ("bf16", "fp32"):
            raise PlanError(f"There is no precision '{asked}'.", hint="bf16 or fp32.")
        if asked == "bf16":
            why = f"{why}; {bf16_instructions(nodes, 'asked for', allow_slow)}"
        return Decision(topic="precision", value=asked, reason=why)
    if recipe.own_script:
        if asked:
            raise PlanError(
                f"--precision is for recipes; {recipe.script} decides for itself.",
                hint="Give the script its own flag after --, for example -- --bf16; or take "
                "--launcher accelerate, which tells the script's Accelerator.",
            )
        return Decision(topic="precision", value="the script's", reason="it decides for itself")
    value = asked or next(iter(recipe.precisions))
    if value not in recipe.precisions:
        raise PlanError(
            f"Recipe '{recipe.name}' has no precision '{value}'.",
            hint=did_you_mean(value, recipe.precisions),
        )
    why = "asked for" if asked else "the recipe's default"
    if value == "bf16" and nodes:
        why = f"{why}; {bf16_instructions(nodes, why, allow_slow)}"
    return Decision(topic="precision", value=value, reason=why)


def bf16_instructions(nodes: tuple[Node, ...], why: str, allow_slow: bool) -> str:
    """Which instructions the nodes have for BF16. Raises PlanError if one has none."""
    slow = fold(node.name for node in nodes if node.facts.bf16 is None)
    if slow and not allow_slow:
        raise PlanError(
            f"BF16 is {why}, but {slow} has neither avx512_bf16 nor amx_bf16.",
            hint="Use --precision fp32, or --allow-slow-bf16 to emulate it.",
        )
    if slow:
        return f"SLOW: no avx512_bf16 or amx_bf16 on {slow}"
    found = sorted({node.facts.bf16 or "" for node in nodes})
    where = f"all {len(nodes)} nodes" if len(nodes) > 1 else nodes[0].name
    return f"{' and '.join(found)} on {where}"


def choose_preload(stack: Stack, nodes: tuple[Node, ...]) -> tuple[tuple[str, ...], Decision]:
    """Libraries for LD_PRELOAD, as paths that are the same on every node, and the decision."""
    paths, missing = [], []
    for name in stack.preload:
        found = {node.facts.libraries.get(name) for node in nodes}
        path = found.pop() if len(found) == 1 else None
        if path is None:
            missing.append(name)
        else:
            paths.append(path)
    reason = f"not installed everywhere: {', '.join(missing)}" if missing else ""
    return tuple(paths), Decision(
        topic="preload", value=", ".join(paths) or "nothing", reason=reason
    )


def leave_preload(stack: Stack) -> tuple[tuple[str, ...], Decision]:
    """In a container each rank looks for the libraries itself: the image's are not the node's."""
    value, why = ", ".join(stack.preload) or "nothing", "as far as the image has them"
    return (), Decision(topic="preload", value=value, reason=why if stack.preload else "")


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
            hint="Call ipex.optimize in the script, and wrap its result in "
            "DistributedDataParallel.",
        )
    stack.check_ipex(precision=precision, through="accelerate", world_size=ranks)


def tell_ranks(layout: Layout, ppn: int | None) -> tuple[Decision, ...]:
    """How many ranks, on how many threads; where nodes differ, which of them and what it costs."""
    places = layout.by_node()
    counts = {node: len(on_it) for node, on_it in places.items()}
    why = f"{ppn} on each node, as asked" if ppn else "one for each NUMA node"
    if len(set(counts.values())) > 1:
        each = (f"{count} on {fold(names)}" for count, names in by_value(counts).items())
        why = f"{why}: {', '.join(each)}"
    told = Decision(topic="ranks", value=str(layout.world_size), reason=why)
    threads = {node: on_it[0].threads for node, on_it in places.items()}
    if len(set(threads.values())) == 1:
        return (told,)
    each = (f"{count} on {fold(names)}" for count, names in by_value(threads).items())
    slowest = fold(by_value(threads)[min(threads.values())])
    why = f"the nodes' cores differ; every step waits for {slowest}, --exclude leaves it out"
    return (told, Decision(topic="threads of a rank", value=", ".join(each), reason=why))


def tell_spares(spares: tuple[Node, ...]) -> tuple[Decision, ...]:
    if not spares:
        return ()
    names = fold([node.name for node in spares])
    return (Decision(topic="spare nodes", value=names, reason="for nodes that are lost"),)


def by_value(values: Mapping[str, int]) -> dict[int, list[str]]:
    """Value -> the names that have it."""
    found: dict[int, list[str]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return found


def tell_idle(nodes: tuple[Node, ...], layout: Layout) -> tuple[Decision, ...]:
    """Cores that no rank uses, if there are any."""
    places = layout.by_node()
    idle = {node.name: unused_cores(node, places[node.name]) for node in nodes}
    return tuple(
        Decision(
            topic="idle",
            value=f"{count} core{'s' * (count != 1)} of {fold(names)}",
            reason="they do not divide evenly",
        )
        for count, names in by_value(idle).items()
        if count
    )


def tell_network(found: tuple[Link, ...]) -> tuple[Decision, ...]:
    """One decision for each reason: the interfaces, and the nodes that have each."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for one in found:
        reasons.setdefault(one.reason, {}).setdefault(one.interface, []).append(one.node)
    return tuple(
        Decision(topic="network", value=spread(interfaces), reason=reason)
        for reason, interfaces in reasons.items()
    )


def spread(interfaces: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{name} on {fold(nodes)}" for name, nodes in interfaces.items())
