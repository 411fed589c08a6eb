"""The precision of a run: the fastest one that all of its nodes compute correctly."""

from __future__ import annotations

from orch_node.protocol.precision import AUTO, BF16, BF16_FLAGS, FP32, describe_lack

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.model.cluster import Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.hostlist import fold
from orchestrator.model.recipe import Recipe
from orchestrator.planning.request import Resume, TrainRequest

OF_SCRIPT = "left to the script"  # the precision of a user's own script
SLOW = "SLOW: "


def choose_precision(
    recipe: Recipe,
    nodes: tuple[Node, ...],
    request: TrainRequest,
    resume: Resume | None = None,
    *,
    through_accelerate: bool = False,
) -> Choice[str]:
    """Return bf16, fp32, `auto` if the ranks will choose, or OF_SCRIPT for a user's own script.

    Args:
        recipe: what is trained.
        nodes: all nodes that may have ranks; empty if they are not known yet.
        request: what the user asks for.
        resume: the unfinished run that is continued.
        through_accelerate: whether accelerate passes the precision on to the user's own script.

    Raises:
        PlanError: if the precision is unknown, or needs BF16 instructions that a node lacks, or is not BF16
            although --allow-slow-bf16 is given.
    """
    if recipe.own_script:
        value, reason = script_precision(recipe, request, through_accelerate=through_accelerate)
    else:
        value, reason = recipe_precision(recipe, nodes, request, resume)
    if value == BF16 and nodes:
        instructions = bf16_instructions(nodes, reason, request)
        reason = f"{reason}; {instructions}" if reason else instructions
    if request.allow_slow_bf16 and value != BF16:
        raise PlanError(
            f"--allow-slow-bf16 has no effect: the precision is {value}.",
            hint=f"Add --precision {BF16}, or omit --allow-slow-bf16.",
        )
    return Choice(value, (Decision(topic="precision", value=value, reason=reason),))


def script_precision(recipe: Recipe, request: TrainRequest, *, through_accelerate: bool) -> tuple[str, str]:
    """Return the precision of a user's own script, and the reason.

    Raises:
        PlanError: if nothing can pass the requested precision on to the script.
    """
    if request.precision == AUTO:
        return OF_SCRIPT, ""
    if not through_accelerate:
        raise PlanError(
            f"--precision {request.precision} applies to recipes only; {recipe.script} is your own script.",
            hint="Pass the script's own flag after --, for example -- --bf16; or add "
            "--launcher accelerate, which sets the precision of the script's Accelerator.",
        )
    if request.precision not in (BF16, FP32):
        raise PlanError(f"Unknown precision '{request.precision}'.", hint=f"Use {AUTO}, {BF16} or {FP32}.")
    return request.precision, "requested; accelerate passes it on to the script"


def recipe_precision(
    recipe: Recipe, nodes: tuple[Node, ...], request: TrainRequest, resume: Resume | None
) -> tuple[str, str]:
    """Return the precision of a recipe, and the reason.

    Raises:
        PlanError: if the recipe does not have the requested precision.
    """
    value = request.precision
    if value not in (AUTO, *recipe.precisions):
        raise PlanError(
            f"Recipe '{recipe.name}' has no precision '{value}'.", hint=did_you_mean(value, (AUTO, *recipe.precisions))
        )
    if value != AUTO:
        return value, "requested"
    if resume is not None and resume.precision in recipe.precisions:
        return resume.precision, f"as in the checkpoint of {resume.run_id}"
    if len(recipe.precisions) == 1:
        return next(iter(recipe.precisions)), f"the only one of recipe '{recipe.name}'"
    if not nodes:
        return AUTO, f"{BF16} if all nodes have instructions for it, otherwise {FP32}"
    lacking = without_bf16(nodes)
    return (FP32, describe_lack(lacking)) if lacking else (BF16, "")


def without_bf16(nodes: tuple[Node, ...]) -> str:
    """Return the names of the nodes without BF16 instructions, folded; empty if all have them."""
    return fold(node.name for node in nodes if node.facts.bf16 is None)


def bf16_instructions(nodes: tuple[Node, ...], reason: str, request: TrainRequest) -> str:
    """Return which BF16 instructions the nodes have.

    Raises:
        PlanError: if a node has none, and emulation is not allowed.
    """
    lacking = without_bf16(nodes)
    if lacking and not request.allow_slow_bf16:
        raise PlanError(
            f"Precision {BF16} ({reason}): {describe_lack(lacking)}.",
            hint=f"None of {', '.join(BF16_FLAGS)}: use --precision {FP32}, or emulate it with --allow-slow-bf16.",
        )
    if lacking:
        return f"{SLOW}{describe_lack(lacking)}"
    flags = sorted({node.facts.bf16 or "" for node in nodes})
    node_text = f"all {len(nodes)} nodes" if len(nodes) > 1 else nodes[0].name
    return f"{' and '.join(flags)} on {node_text}"
