"""Build the steps of a training run: its files on every node, then its start on node0. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orch_node.protocol.record import RunNode

from orchestrator.launchers import Job, Launch
from orchestrator.model.cluster import Node
from orchestrator.model.command import Command
from orchestrator.model.process_group import Backend
from orchestrator.model.recipe import Recipe, Value
from orchestrator.planning import run_files as rank_files
from orchestrator.planning.containers import FILE as CONTAINER_FILE
from orchestrator.planning.plan import PutFile, StartRun, Step
from orchestrator.planning.sent_files import Files, named_files, sent_files, sent_packages
from orchestrator.planning.site import Site


def run_node(node: Node) -> RunNode:
    return RunNode(node=node.name, via=node.via)


def run_nodes(nodes: tuple[Node, ...]) -> tuple[RunNode, ...]:
    return tuple(map(run_node, nodes))


def reachable_files(recipe: Recipe, settings: Mapping[str, Value], nodes: tuple[Node, ...], site: Site) -> Files:
    """Return the paths of the script and the data files on the nodes, and the steps that send them."""
    if nodes[0].local and recipe.project is None:
        return Files(paths={path: path for path in named_files(recipe, settings)}, sent=())
    python = nodes[0].python
    files = sent_files(recipe, settings, run_nodes(nodes), site, python=python)
    if all(node.local for node in nodes):
        return files
    return replace(files, sent=(*files.sent, *sent_packages(recipe, run_nodes(nodes), site, python=python)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """The parts of a run's files and command that do not depend on the launcher.

    Attributes:
        environment: variables of the recipe and the user, for all ranks.
        container: the content of container.json, or None if the ranks run without containers.
        working_directory: the folder in which the script starts; empty for that of the launcher.
        options: the options of the supervisor.
    """

    spares: tuple[Node, ...]
    backend: Backend
    preload: tuple[str, ...]
    environment: Mapping[str, str]
    container: str | None
    working_directory: str
    options: tuple[str, ...]


def plan_steps(site: Site, job: Job, launch: Launch, extras: Extras) -> tuple[Step, ...]:
    """Return the steps that write the run's files on every node and start the run on node0."""
    node0, all_nodes = job.nodes[0], run_nodes((*job.nodes, *extras.spares))
    return (
        *put_files((run_node(node0),), site.run_dir, launch.files),
        *put_files(all_nodes, site.run_dir, shared_files(job, launch, extras)),
        start_run(site, node0, launch, extras.options),
    )


def shared_files(job: Job, launch: Launch, extras: Extras) -> dict[str, str]:
    """Return the contents, by file name, of the files that are the same on every node."""
    backend, links = extras.backend, job.links
    return {
        "env.json": rank_files.env_json(
            job.address, job.port, backend, extras.preload, {**launch.environment, **extras.environment}
        ),
        "layout.json": rank_files.layout_json(
            job.layout, backend, job.nodes, extras.spares, links, extras.working_directory
        ),
        **launch.shared,
        **({CONTAINER_FILE: extras.container} if extras.container else {}),
    }


def start_run(site: Site, node0: Node, launch: Launch, options: tuple[str, ...]) -> StartRun:
    """Return the step that starts the supervisor on node0."""
    supervise = (node0.python, f"{site.train}/node.py", "supervise", site.run_dir, *options, "--")
    command = Command(argv=(*supervise, *launch.command.argv), env=launch.command.env)
    return StartRun(node=run_node(node0), run_dir=site.run_dir, command=command)


def put_files(nodes: tuple[RunNode, ...], folder: str, contents: Mapping[str, str]) -> tuple[PutFile, ...]:
    """Return the steps that write files to a folder on all of these nodes."""
    return tuple(PutFile(nodes=nodes, path=f"{folder}/{name}", content=content) for name, content in contents.items())
