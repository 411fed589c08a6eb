"""`orch train`: read, decide, show or do, tell."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator import load, runs, ssh_config
from orchestrator.backends.local import Local
from orchestrator.backends.ssh import Ssh
from orchestrator.cluster import Cluster
from orchestrator.errors import ExecuteError
from orchestrator.execute import execute
from orchestrator.mirror import Mirror
from orchestrator.plan import Plan, Target
from orchestrator.plan_train import Site, TrainRequest, plan_train
from orchestrator.report.outcome import Outcome, outcome_of
from orchestrator.share import TRAIN
from orchestrator.state import State, write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The flags of the command line, not yet checked against any file."""

    request: TrainRequest
    pairs: tuple[str, ...]
    runs_dir: Path
    recipe_path: tuple[Path, ...] = ()


def plan(asked: Asked) -> Plan:
    """Steps 1 and 2: read the files, decide. Touches no host."""
    recipe = load.recipe(asked.request.recipe, asked.recipe_path)
    stack = load.stack(asked.request.stack)
    settings = load.settings(list(asked.pairs), recipe)
    request = replace(asked.request, settings=settings)
    cluster = load.cluster(
        request.inventory, stack.name, nodes=request.nodes, exclude=request.exclude
    )
    write_ssh_config(cluster)
    base = asked.runs_dir.absolute()
    site = new_site(recipe.name, base, cluster)
    first = plan_train(request, cluster=cluster, recipe=recipe, stack=stack, site=site)
    resume = None if request.fresh else runs.unfinished(base, first.key)
    if resume is None:
        return first
    return plan_train(
        request, cluster=cluster, recipe=recipe, stack=stack, site=site, resume=resume
    )


def write_ssh_config(cluster: Cluster) -> None:
    """What the `ssh -F` of a plan, and fabric, read."""
    source = Path(cluster.source)
    if found := load.connections(source, cluster.nodes):
        write_private(State.of(source).ssh_config, ssh_config.render(found))


def new_site(recipe: str, base: Path, cluster: Cluster) -> Site:
    """A new run: its id sorts by time and reads well in a list."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = "".join(letter if letter.isalnum() else "-" for letter in recipe)[:40]
    run_id = f"{now}-{name}-{secrets.token_hex(2)}"
    root = next((node.root for node in cluster.nodes if not node.local), None)
    return Site(
        run_id=run_id,
        run_dir=f"{root}/runs/{run_id}" if root else str(base / run_id),
        train=f"{root}/train" if root else str(TRAIN),
        train_here=str(TRAIN),
    )


class Execution:
    """A plan that is being done: steps 4 and 5. The run itself lives on without this object."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.backends = {at.node: backend_for(at) for step in plan.steps for at in step.targets}
        node0 = self.backends[plan.node0.node]
        self.source: runs.Source = (
            Mirror(node0, plan.run_dir, folder) if isinstance(node0, Ssh) else runs.Here(folder)
        )
        self.missing: list[str] = []

    def start(self) -> None:
        """Record the plan and do its steps."""
        runs.record(self.plan, self.folder)
        execute(self.plan, self.backends)

    def watch(self) -> Iterator[dict[str, Any]]:
        """Events of the run until it has ended."""
        yield from runs.follow(self.folder, self.source)

    def stop(self) -> None:
        """Ask the run's supervisor to stop all ranks, and wait until it has."""
        runs.stop(self.folder, self.source)

    def finish(self) -> Outcome:
        """How the run ended; logs and results are here then, and `missing` tells of which not."""
        for name, backend in self.backends.items():
            if isinstance(backend, Ssh):
                try:
                    self.take(Mirror(backend, self.plan.run_dir, self.folder), name)
                except ExecuteError as error:
                    self.missing.append(f"nothing more from {name}: {error.message}")
        return outcome_of(runs.load(self.folder))

    def take(self, mirror: Mirror, node: str) -> None:
        """What a node has of the run: node0 the results, every node the logs of its ranks."""
        if node == self.plan.node0.node:
            mirror.finish(self.plan.output_dir)
        mirror.take_logs()


def backend_for(target: Target) -> Local | Ssh:
    """OpenSSH's `ssh -F CONFIG NODE` is what a target carries; fabric reads the same file."""
    return Ssh(target.node, target.via[2]) if target.via else Local()
