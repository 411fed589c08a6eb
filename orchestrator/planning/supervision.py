"""Decide how the supervisor of a run watches and restarts it. Pure."""

from __future__ import annotations

from orchestrator.errors import PlanError
from orchestrator.model.printable import counted
from orchestrator.model.recipe import Recipe
from orchestrator.planning.launchers import RESTARTING, Launch
from orchestrator.planning.request import TrainRequest


def check_restarts(request: TrainRequest, nodes: int) -> None:
    """Check the options of restarts, for a run on this number of nodes.

    Raises:
        PlanError: if one is out of range, or has no effect without --max-restarts.
    """
    for flag, value in (
        ("--stall-timeout", request.stall_timeout),
        ("--max-restarts", request.max_restarts),
        ("--spare-nodes", request.spare_nodes),
        ("--min-nodes", request.min_nodes),
    ):
        if value < 0:
            raise PlanError(f"{flag} {value:g}: expected 0 or more.", hint=f"Omit {flag}, or use 0 to turn it off.")
    if request.min_nodes > nodes:
        raise PlanError(
            f"--min-nodes {request.min_nodes}, but the run has {counted(nodes, 'node')}.",
            hint=f"Use --min-nodes {nodes} or less.",
        )
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


def launcher_restarts(request: TrainRequest, recipe: Recipe, launcher: str) -> int:
    """Return how often the launcher itself restarts the ranks; 0 if that is up to the supervisor.

    The supervisor restarts runs with a copy of a project, because it gives node0's files to the other nodes before.
    """
    return request.max_restarts if launcher in RESTARTING and recipe.project is None else 0


def supervisor_options(
    request: TrainRequest, recipe: Recipe, launcher: str, launch: Launch, *, attempt: int
) -> tuple[str, ...]:
    """Return the options of the supervisor that do not depend on the target."""
    positions = (("size", launch.size_at), ("nodes", launch.nodes_at))  # of these numbers in the launcher's command
    position_options = [f"--{name}-at={position}" for name, position in positions if position is not None]
    return (
        f"--stall-timeout={request.stall_timeout:g}",
        *([f"--first-attempt={attempt}"] if attempt > 1 else []),
        *([f"--max-restarts={request.max_restarts}"] if request.max_restarts else []),
        *(["--launcher-restarts"] if launcher_restarts(request, recipe, launcher) else []),
        *(["--elastic", *position_options] if recipe.elastic or request.min_nodes else []),
        *(["--keeps-batch"] if recipe.elastic else []),
        *([f"--min-nodes={request.min_nodes}"] if request.min_nodes else []),
        *([f"--path={launch.path}"] if launch.path else []),
    )
