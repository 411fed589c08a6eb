"""BF16, FP32, or what a script of the user's own decides."""

from __future__ import annotations

from orchestrator.errors import PlanError, did_you_mean
from orchestrator.model.cluster import Node
from orchestrator.model.decision import Choice, Decision
from orchestrator.model.hostlist import fold
from orchestrator.model.recipe import Recipe

OF_SCRIPT = "left to the script"
SLOW = "SLOW: "


def choose_precision(
    recipe: Recipe,
    nodes: tuple[Node, ...],
    *,
    asked: str | None,
    allow_slow: bool,
    launched: bool = False,
) -> Choice[str]:
    """bf16, fp32 or, for an own script, its own. Raises PlanError.

    BF16 without instructions for it is refused unless `allow_slow`. `launched`: by accelerate,
    which tells the Accelerator of an own script its precision.
    """
    if recipe.own_script:
        value, why = own_precision(recipe, asked, launched=launched)
    else:
        value, why = recipe_precision(recipe, asked)
    if value == "bf16" and nodes:
        because = "asked for" if asked else why
        why = f"{why}; {bf16_instructions(nodes, because, allow_slow)}"
    return Choice(value, (Decision(topic="precision", value=value, reason=why),))


def own_precision(recipe: Recipe, asked: str | None, *, launched: bool) -> tuple[str, str]:
    """Of a script of the user's own, and why. Raises PlanError."""
    if not asked:
        return OF_SCRIPT, ""
    if not launched:
        raise PlanError(
            f"--precision is for recipes; {recipe.script} decides for itself.",
            hint="Give the script its own flag after --, for example -- --bf16; or take "
            "--launcher accelerate, which tells the script's Accelerator.",
        )
    if asked not in ("bf16", "fp32"):
        raise PlanError(f"There is no precision '{asked}'.", hint="bf16 or fp32.")
    return asked, "what accelerate tells the script's Accelerator"


def recipe_precision(recipe: Recipe, asked: str | None) -> tuple[str, str]:
    """Of a recipe, and why. Raises PlanError."""
    value = asked or next(iter(recipe.precisions))
    if value not in recipe.precisions:
        raise PlanError(
            f"Recipe '{recipe.name}' has no precision '{value}'.",
            hint=did_you_mean(value, recipe.precisions),
        )
    return value, "asked for" if asked else "the recipe's default"


def bf16_instructions(nodes: tuple[Node, ...], why: str, allow_slow: bool) -> str:
    """Which instructions the nodes have for BF16. Raises PlanError if one has none."""
    slow = fold(node.name for node in nodes if node.facts.bf16 is None)
    if slow and not allow_slow:
        raise PlanError(
            f"BF16 is {why}, but {slow} has neither avx512_bf16 nor amx_bf16.",
            hint="Use --precision fp32, or --allow-slow-bf16 to emulate it.",
        )
    if slow:
        return f"{SLOW}no avx512_bf16 or amx_bf16 on {slow}"
    found = sorted({node.facts.bf16 or "" for node in nodes})
    where = f"all {len(nodes)} nodes" if len(nodes) > 1 else nodes[0].name
    return f"{' and '.join(found)} on {where}"
