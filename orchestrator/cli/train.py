"""`orch train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import typer
from typer.models import ParameterInfo

from orchestrator.cli import groups
from orchestrator.cli.groups import Group
from orchestrator.cli.options import complain
from orchestrator.cli.output import OUTPUT, Output, check_format, check_manifest
from orchestrator.cli.request import PANELS, STARTERS
from orchestrator.planning.request import TrainRequest

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFlags:
    """What a target adds to the command line. `on`: what --on says to mean it; `launchers`: its
    own, the default first; `group`: its options; `manifests`: whether its plans are such."""

    on: str
    summary: str
    launchers: tuple[str, ...]
    group: Group
    manifests: bool = False


def command(*targets: TargetFlags) -> Callable[..., None]:
    """`orch train` with the options of these targets."""

    def train(context: typer.Context, request: TrainRequest, output: Output, **own: Any) -> None:
        """Train a recipe, or any script of your own: on this machine, or on a cluster."""
        from orchestrator.cli.running import show_or_run
        from orchestrator.operations import train as operation

        check_launcher(request, targets)
        options = tuple(asked(own[one.on], request.on, context) for one in targets)
        request = replace(request, options=options, runs_dir=output.runs_dir)
        check_format(output)
        plan = operation.plan(request)
        for line in operation.left_out(request):
            complain(f"warning: {line}")
        check_manifest(
            output, plan, " or ".join(f"--on {one.on}" for one in targets if one.manifests)
        )
        show_or_run(plan, output, operation.start)

    own = {one.on: one.group for one in targets}
    request = Group(kind=TrainRequest, panels=with_targets(targets))
    output = Group(kind=Output, panels={"Output": OUTPUT})
    return groups.command(train, request=request, **own, output=output)


def with_targets(targets: tuple[TargetFlags, ...]) -> dict[str, Mapping[str, ParameterInfo]]:
    """The panels of a request, in which the targets are named."""
    words = "|".join(one.on for one in targets)
    here = "Default: here, or on the nodes of --inventory."
    on = typer.Option(metavar=words, help=" ".join([*(one.summary for one in targets), here]))
    launcher = copy(PANELS["Ranks"]["launcher"])
    theirs = "".join(f" On {one.on}: {', '.join(one.launchers)}." for one in targets)
    launcher.help = f"{launcher.help}{theirs}"
    return {
        **PANELS,
        "Where": {"on": on, **PANELS["Where"]},
        "Ranks": {**PANELS["Ranks"], "launcher": launcher},
    }


def asked(options: Any, on: str | None, context: typer.Context) -> Any:
    """A target's options. What the environment says of another target than `on` is not asked."""
    return options if options.on == on else groups.without_environment(options, context)


def check_launcher(request: TrainRequest, targets: tuple[TargetFlags, ...]) -> None:
    """Raises RequestError for a launcher of another target."""
    from orchestrator.errors import RequestError

    for one in targets:
        if request.launcher in one.launchers and request.on != one.on:
            where = f"--on {one.on}"
            raise RequestError(
                f"--launcher {request.launcher} is for {where}.",
                hint=f"Add {where}, or take one of {', '.join(STARTERS)}.",
            )
