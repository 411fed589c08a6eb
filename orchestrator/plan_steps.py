"""The steps of a training run: its files on every node, then its start on node0. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchestrator import rank_files
from orchestrator.backend import Backend
from orchestrator.cluster import Node
from orchestrator.command import Command
from orchestrator.docker import FILE as CONTAINER_FILE
from orchestrator.errors import PlanError
from orchestrator.launchers import RESTARTING, Job, Launch
from orchestrator.plan import PutFile, SendFile, StartRun, Step, Target
from orchestrator.recipe import Recipe, Value
from orchestrator.train_request import TrainRequest


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where files of this machine are found by the ranks, and the copies that this takes."""

    paths: Mapping[str, str]
    sent: tuple[SendFile, ...]


def target(node: Node) -> Target:
    return Target(node=node.name, via=node.via)


def targets(nodes: tuple[Node, ...]) -> tuple[Target, ...]:
    return tuple(map(target, nodes))


def reachable_files(
    recipe: Recipe, settings: Mapping[str, Value], nodes: tuple[Node, ...], site: Site
) -> Files:
    """The script and the data files as the ranks see them.

    What lies in train/ has been provisioned; other files of this machine are sent to the nodes.
    The files of a plug-in recipe stay as they are to each other.
    """
    data = [str(settings[name]) for name in recipe.paths if name in settings]
    paths: dict[str, str] = {}
    sent: list[SendFile] = []
    for path in dict.fromkeys([recipe.script, *recipe.files, *data]):
        inside = PurePosixPath(path).is_relative_to(site.train_here)
        if nodes[0].local:
            paths[path] = path
        elif inside:
            paths[path] = f"{site.train}/{PurePosixPath(path).relative_to(site.train_here)}"
        else:
            paths[path] = f"{site.run_dir}/files/{place_of(path, recipe, len(paths))}"
            sent.append(SendFile(at=targets(nodes), source=path, path=paths[path]))
    return Files(paths=paths, sent=tuple(sent))


def place_of(path: str, recipe: Recipe, number: int) -> str:
    if path in recipe.files:
        return f"recipe/{PurePosixPath(path).relative_to(recipe.folder)}"
    return f"{number}/{PurePosixPath(path).name}"


def map_paths(recipe: Recipe, settings: Mapping[str, Value], files: Files) -> dict[str, Value]:
    return {
        name: files.paths[str(value)] if name in recipe.paths else value
        for name, value in settings.items()
    }


def plan_steps(
    site: Site,
    job: Job,
    launch: Launch,
    *,
    spares: tuple[Node, ...],
    backend: Backend,
    preload: tuple[str, ...],
    docker: str | None,
    options: tuple[str, ...],
) -> tuple[Step, ...]:
    """The run's files on every node, then its start on node0. `docker`: container.json, if ranks
    are in containers. `options`: of supervise.py."""
    node0, everywhere = job.nodes[0], targets((*job.nodes, *spares))
    shared = {
        "env.json": rank_files.env_json(
            job.address, job.port, backend, preload, launch.environment
        ),
        "layout.json": rank_files.layout_json(job.layout, backend, job.nodes, spares, job.links),
        **launch.shared,
        **({CONTAINER_FILE: docker} if docker else {}),
    }
    supervise = (node0.python, f"{site.train}/supervise.py", site.run_dir, *options, "--")
    return (
        *put((target(node0),), site.run_dir, launch.files),
        *put(everywhere, site.run_dir, shared),
        StartRun(
            at=target(node0),
            run_dir=site.run_dir,
            command=Command(argv=(*supervise, *launch.command.argv), env=launch.command.env),
        ),
    )


def supervision(
    request: TrainRequest, recipe: Recipe, site: Site, launch: Launch
) -> tuple[str, ...]:
    """Options of train/supervise.py. Raises PlanError for numbers that cannot be."""
    restarts = request.max_restarts
    if min(request.stall_timeout, restarts, request.spare_nodes, request.min_nodes) < 0:
        raise PlanError(
            "--stall-timeout, --max-restarts, --spare-nodes and --min-nodes are 0 or more."
        )
    if request.min_nodes and not restarts:
        raise PlanError(
            "--min-nodes without --max-restarts: nodes are left out when a run restarts.",
            hint="Add --max-restarts 1 or more.",
        )
    if request.spare_nodes and not restarts:
        raise PlanError(
            "--spare-nodes without --max-restarts: a spare node stands in when a run restarts.",
            hint="Add --max-restarts 1 or more.",
        )
    return (
        f"--claims={site.claims}",
        f"--stall-timeout={request.stall_timeout:g}",
        *([f"--max-restarts={request.max_restarts}"] if request.max_restarts else []),
        *(["--launcher-restarts"] if restarts and request.launcher in RESTARTING else []),
        *(["--elastic", *numbers(launch)] if recipe.elastic or request.min_nodes else []),
        *([f"--min-nodes={request.min_nodes}"] if request.min_nodes else []),
        *([f"--path={launch.path}"] if launch.path else []),
        *(["--queue"] if request.queue else []),
    )


def numbers(launch: Launch) -> tuple[str, ...]:
    """Where the launcher's command names how many ranks and nodes there are."""
    found = (("size", launch.size_at), ("nodes", launch.nodes_at))
    return tuple(f"--{name}-at={at}" for name, at in found if at is not None)


def put(at: tuple[Target, ...], folder: str, contents: Mapping[str, str]) -> tuple[PutFile, ...]:
    return tuple(
        PutFile(at=at, path=f"{folder}/{name}", content=content)
        for name, content in contents.items()
    )
