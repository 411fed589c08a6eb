"""Decide how the supervisor of a run watches and restarts it. Pure."""

from __future__ import annotations

from orchestrator.errors import PlanError
from orchestrator.launchers import RESTARTING, Launch
from orchestrator.model.recipe import Recipe
from orchestrator.planning.request import TrainRequest


def check_restarts(request: TrainRequest) -> None:
    """Raise PlanError if an option of restarts is negative, or needs --max-restarts and lacks it."""
    numbers = (request.stall_timeout, request.max_restarts, request.spare_nodes, request.min_nodes)
    if min(numbers) < 0:
        raise PlanError("--stall-timeout, --max-restarts, --spare-nodes and --min-nodes are 0 or more.")
    if request.max_restarts:
        return
    for flag, value, purpose in (
        ("--min-nodes", request.min_nodes, "nodes are left out"),
        ("--spare-nodes", request.spare_nodes, "a spare node replaces another"),
    ):
        if value:
            raise PlanError(
                f"{flag} without --max-restarts has no effect: {purpose} when a run restarts.",
                hint="Add --max-restarts 1 or more.",
            )


def launcher_restarts(request: TrainRequest, launcher: str) -> int:
    """Return how often the launcher itself restarts the ranks; 0 if that is up to the supervisor."""
    return request.max_restarts if launcher in RESTARTING else 0


def supervisor_options(request: TrainRequest, recipe: Recipe, launcher: str, launch: Launch) -> tuple[str, ...]:
    """Return the options of the supervisor that do not depend on the target."""
    positions = (("size", launch.size_at), ("nodes", launch.nodes_at))  # of these numbers in the launcher's command
    position_options = [f"--{name}-at={position}" for name, position in positions if position is not None]
    return (
        f"--stall-timeout={request.stall_timeout:g}",
        *([f"--max-restarts={request.max_restarts}"] if request.max_restarts else []),
        *(["--launcher-restarts"] if launcher_restarts(request, launcher) else []),
        *(["--elastic", *position_options] if recipe.elastic or request.min_nodes else []),
        *(["--keeps-batch"] if recipe.elastic else []),
        *([f"--min-nodes={request.min_nodes}"] if request.min_nodes else []),
        *([f"--path={launch.path}"] if launch.path else []),
    )
