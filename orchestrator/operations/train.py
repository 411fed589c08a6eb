"""`orch train`: read, decide, show or do, tell."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator import load, runs
from orchestrator.backends.local import Local
from orchestrator.execute import execute
from orchestrator.plan import Plan
from orchestrator.plan_train import Site, TrainRequest, plan_train
from orchestrator.report.outcome import Outcome, outcome_of
from orchestrator.share import TRAIN

START_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The flags of the command line, not yet checked against any file."""

    request: TrainRequest
    pairs: tuple[str, ...]
    runs_dir: Path


def plan(asked: Asked) -> Plan:
    """Steps 1 and 2: read the files, decide. Touches no host."""
    recipe = load.recipe(asked.request.recipe)
    stack = load.stack(asked.request.stack)
    settings = load.settings(list(asked.pairs), recipe)
    request = replace(asked.request, settings=settings)
    cluster = load.cluster(request.inventory)
    base = asked.runs_dir.absolute()
    site = new_site(recipe.name, base)
    first = plan_train(request, cluster=cluster, recipe=recipe, stack=stack, site=site)
    resume = None if request.fresh else runs.unfinished(base, first.key)
    if resume is None:
        return first
    return plan_train(
        request, cluster=cluster, recipe=recipe, stack=stack, site=site, resume=resume
    )


def new_site(recipe: str, base: Path) -> Site:
    """A new run: its id sorts by time and reads well in a list."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = "".join(letter if letter.isalnum() else "-" for letter in recipe)[:40]
    run_id = f"{now}-{name}-{secrets.token_hex(2)}"
    return Site(run_id=run_id, run_dir=str(base / run_id), train=str(TRAIN), train_here=str(TRAIN))


def start(plan: Plan) -> None:
    """Step 4: record the plan and do it; the run then lives by itself."""
    runs.record(plan)
    execute(plan, {step.at.node: Local() for step in plan.steps})


def watch(plan: Plan) -> Iterator[dict[str, Any]]:
    """Events of the run until it has ended."""
    folder = Path(plan.run_dir)
    runs.await_start(folder, START_SECONDS)
    yield from runs.follow(folder)


def stop(plan: Plan) -> None:
    """Ask the run's supervisor to stop all ranks, and wait until it has."""
    runs.stop(Path(plan.run_dir))


def outcome(plan: Plan) -> Outcome:
    """How the run ended."""
    return outcome_of(runs.load(Path(plan.run_dir)))
