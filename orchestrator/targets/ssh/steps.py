"""The steps of a training run: its files on every node, then its start on node0. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orch_node.protocol.environment import defaults
from orch_node.protocol.record import RunNode

from orchestrator.errors import PlanError
from orchestrator.launchers import Job, Launch
from orchestrator.model.cluster import Node
from orchestrator.model.command import Command
from orchestrator.model.process_group import Backend
from orchestrator.model.recipe import Recipe, Value
from orchestrator.planning import run_files as rank_files
from orchestrator.planning.containers import FILE as CONTAINER_FILE
from orchestrator.planning.plan import PutFile, StartRun, Step
from orchestrator.planning.request import TrainRequest
from orchestrator.planning.sent_files import Files, named_files, sent_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Absolute folders: the run's on its nodes, train/ there, train/ on this machine, the claims
    of all runs on a node's cores, and orch's on nodes that are other machines. `started_by`:
    user@host; `created`: since the epoch."""

    run_id: str
    run_dir: str
    train: str
    train_here: str
    claims: str
    started_by: str
    created: float
    root: str = ""


def run_node(node: Node) -> RunNode:
    return RunNode(node=node.name, via=node.via)


def run_nodes(nodes: tuple[Node, ...]) -> tuple[RunNode, ...]:
    return tuple(map(run_node, nodes))


def reachable_files(recipe: Recipe, settings: Mapping[str, Value], nodes: tuple[Node, ...], site: Site) -> Files:
    """The script and the data files as the ranks see them."""
    if nodes[0].local:
        return Files(paths={path: path for path in named_files(recipe, settings)}, sent=())
    return sent_files(recipe, settings, run_nodes(nodes), site)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a run takes besides its job. `docker`: container.json, if ranks are in containers;
    `recipe`: its variables; `options`: of the supervisor."""

    spares: tuple[Node, ...]
    backend: Backend
    preload: tuple[str, ...]
    recipe: Mapping[str, str]
    docker: str | None
    options: tuple[str, ...]


def plan_steps(site: Site, job: Job, launch: Launch, extras: Extras) -> tuple[Step, ...]:
    """The run's files on every node, then its start on node0."""
    node0, everywhere = job.nodes[0], run_nodes((*job.nodes, *extras.spares))
    return (
        *put((run_node(node0),), site.run_dir, launch.files),
        *put(everywhere, site.run_dir, shared_files(job, launch, extras)),
        start(site, run_node(node0), node0.python, launch=launch, options=extras.options),
    )


def shared_files(job: Job, launch: Launch, extras: Extras) -> dict[str, str]:
    """Name in the run's folder -> content, the same on every node."""
    backend, links = extras.backend, job.links
    return {
        "env.json": rank_files.env_json(
            job.address, job.port, backend, extras.preload, {**launch.environment, **defaults(extras.recipe)}
        ),
        "layout.json": rank_files.layout_json(job.layout, backend, job.nodes, extras.spares, links),
        **launch.shared,
        **({CONTAINER_FILE: extras.docker} if extras.docker else {}),
    }


def start(site: Site, at: RunNode, python: str, *, launch: Launch, options: tuple[str, ...]) -> StartRun:
    supervise = (python, f"{site.train}/node.py", "supervise", site.run_dir, *options, "--")
    command = Command(argv=(*supervise, *launch.command.argv), env=launch.command.env)
    return StartRun(at=at, run_dir=site.run_dir, command=command)


def check_restarts(request: TrainRequest) -> None:
    """Raises PlanError for numbers that cannot be."""
    numbers = (request.stall_timeout, request.max_restarts, request.spare_nodes, request.min_nodes)
    if min(numbers) < 0:
        raise PlanError("--stall-timeout, --max-restarts, --spare-nodes and --min-nodes are 0 or more.")
    if request.max_restarts:
        return
    for flag, given, why in (
        ("--min-nodes", request.min_nodes, "nodes are left out"),
        ("--spare-nodes", request.spare_nodes, "a spare node stands in"),
    ):
        if given:
            raise PlanError(
                f"{flag} without --max-restarts: {why} when a run restarts.", hint="Add --max-restarts 1 or more."
            )


def supervision(request: TrainRequest, recipe: Recipe, site: Site, job: Job, launch: Launch) -> tuple[str, ...]:
    """Options of the supervisor."""
    return (
        f"--claims={site.claims}",
        f"--stall-timeout={request.stall_timeout:g}",
        *([f"--max-restarts={request.max_restarts}"] if request.max_restarts else []),
        *(["--launcher-restarts"] if job.restarts else []),
        *(["--elastic", *numbers(launch)] if recipe.elastic or request.min_nodes else []),
        *(["--keeps-batch"] if recipe.elastic else []),
        *([f"--min-nodes={request.min_nodes}"] if request.min_nodes else []),
        *([f"--path={launch.path}"] if launch.path else []),
        *(["--queue"] if request.queue else []),
    )


def numbers(launch: Launch) -> tuple[str, ...]:
    """Where the launcher's command names how many ranks and nodes there are."""
    found = (("size", launch.size_at), ("nodes", launch.nodes_at))
    return tuple(f"--{name}-at={at}" for name, at in found if at is not None)


def put(at: tuple[RunNode, ...], folder: str, contents: Mapping[str, str]) -> tuple[PutFile, ...]:
    return tuple(PutFile(at=at, path=f"{folder}/{name}", content=content) for name, content in contents.items())
