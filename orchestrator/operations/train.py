"""`orch train`: read, decide, show or do, tell."""

from __future__ import annotations

import datetime
import getpass
import secrets
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import load, runs
from orchestrator.card import run_card, whereabouts
from orchestrator.cluster import Cluster
from orchestrator.execute import execute
from orchestrator.operations.reach import backend_for
from orchestrator.operations.ssh_access import write_ssh_config
from orchestrator.operations.watch import Watch
from orchestrator.plan import Plan
from orchestrator.plan_steps import Site
from orchestrator.plan_train import plan_train
from orchestrator.share import TRAIN
from orchestrator.state import state_home
from orchestrator.train_request import TrainRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The flags of the command line, not yet checked against any file."""

    request: TrainRequest
    pairs: tuple[str, ...]
    accelerate_config: str | None = None
    docker_image: str | None = None
    docker: tuple[str, ...] = ()
    runs_dir: Path
    recipe_path: tuple[Path, ...] = ()


def plan(asked: Asked) -> Plan:
    """Steps 1 and 2: read the files, decide. Touches no host."""
    recipe = load.recipe(asked.request.recipe, asked.recipe_path)
    stack = load.stack(asked.request.stack)
    settings = load.settings(list(asked.pairs), recipe)
    request = replace(
        with_wishes(asked),
        settings=settings,
        docker=load.docker(asked.docker_image, asked.docker, asked.request.inventory),
    )
    cluster = load.cluster(
        request.inventory,
        stack.name,
        nodes=request.nodes,
        exclude=request.exclude,
        spares=request.spare_nodes,
    )
    write_ssh_config(cluster)
    base = asked.runs_dir.absolute()
    site = new_site(recipe.name, base, cluster)
    plugins = load.plugins()
    first = plan_train(
        request, cluster=cluster, recipe=recipe, stack=stack, site=site, plugins=plugins
    )
    resume = None if request.fresh else runs.unfinished(base, first.key)
    if resume is None:
        return first
    return plan_train(
        request,
        cluster=cluster,
        recipe=recipe,
        stack=stack,
        site=site,
        plugins=plugins,
        resume=resume,
    )


def with_wishes(asked: Asked) -> TrainRequest:
    """The request with what a configuration of accelerate says, where no flag says otherwise."""
    request = asked.request
    if asked.accelerate_config is None:
        return request
    wishes = load.accelerate_config(asked.accelerate_config)
    return replace(
        request,
        wishes=wishes,
        nodes=request.nodes or wishes.nodes,
        ppn=request.ppn or wishes.ppn,
        precision=request.precision or wishes.precision,
    )


def new_site(recipe: str, base: Path, cluster: Cluster) -> Site:
    """A new run: its id sorts by time and reads well in a list."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = "".join(letter if letter.isalnum() else "-" for letter in recipe)[:40]
    run_id = f"{now}-{name}-{secrets.token_hex(2)}"
    root = next((node.root for node in cluster.nodes if not node.local), None)
    return Site(
        run_id=run_id,
        claims=f"{root}/claims" if root else str(state_home() / "claims"),
        started_by=f"{getpass.getuser()}@{socket.gethostname()}",
        created=round(time.time(), 3),
        root=root or "",
        run_dir=f"{root}/runs/{run_id}" if root else str(base / run_id),
        train=f"{root}/train" if root else str(TRAIN),
        train_here=str(TRAIN),
    )


def start(plan: Plan, folder: Path) -> Watch:
    """Record the plan and do its steps; -> the run, to be watched. It lives on without that."""
    runs.record(plan, folder)
    reached = {at.node: at for step in plan.steps for at in step.targets}
    backends = {node: backend_for(at) for node, at in reached.items()}
    try:
        execute(plan, backends)
    finally:
        for backend in backends.values():
            backend.close()
    return Watch(whereabouts(run_card(plan)), folder)
