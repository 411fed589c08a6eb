"""The files of a run on its nodes: layout.json and env.json for the ranks' wrappers, and the user's files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath

from orch_node.protocol import files
from orch_node.protocol import layout as run_layouts
from orch_node.protocol.environment import interface_variables, local_rank_variables
from orch_node.protocol.layout import NodeEntry, RankEntry, RunLayout
from orch_node.protocol.record import RankPlacement, RunNode

from orchestrator.model.cluster import LOOPBACK, Layout, Link, Node
from orchestrator.model.process_group import Backend
from orchestrator.model.project import Project
from orchestrator.model.recipe import Recipe, Value
from orchestrator.planning.plan import SendFile, SendFolder, StoreFolder
from orchestrator.planning.request import RunPaths
from orchestrator.planning.resolve import Resolved

TIMEOUT_SECONDS = 1800.0  # torch.distributed's own default for gloo


def layout_json(
    layout: Layout,
    backend: Backend,
    nodes: tuple[Node, ...],
    spares: tuple[Node, ...],
    links: tuple[Link, ...],
    working_directory: str = "",
) -> str:
    """Return the content of layout.json: every node with its variables, and every rank's placement.

    Args:
        layout: the ranks.
        backend: the backend of the process group.
        nodes: the nodes of the ranks.
        spares: the spare nodes.
        links: the networks between the nodes.
        working_directory: the folder in which the script starts; empty for that of the launcher.
    """
    linked = {link.node: link for link in links}
    by_name = {node.name: node for node in nodes}
    run_layout = RunLayout(
        world_size=layout.world_size,
        backend=backend.name,
        backend_module=backend.module,
        timeout_seconds=TIMEOUT_SECONDS,
        setvars=backend.setvars,
        working_directory=working_directory,
        spares={node.name: node.address for node in spares},
        nodes=tuple(
            NodeEntry(
                name=node.name,
                host=node.facts.hostname,
                torch=node.facts.packages.get("torch"),
                address=link.address if link else None,
                interface=link.interface if link else None,
                env=link.environment() if link else interface_variables(LOOPBACK),
                repair=node.repair,
                recorded=not node.local,
            )
            for node, link in ((node, linked.get(node.name)) for node in (*nodes, *spares))
        ),
        ranks=tuple(
            entry
            for name, node_places in layout.by_node().items()
            for entry in rank_entries(by_name[name], node_places, linked.get(name), backend)
        ),
    )
    return run_layouts.render(run_layout)


def rank_entries(
    node: Node, node_places: tuple[RankPlacement, ...], link: Link | None, backend: Backend
) -> list[RankEntry]:
    """Return the entries of a node's ranks, whose variables select the devices near their cores."""
    devices: tuple[Mapping[str, str], ...] = ({},) * len(node_places)
    if link and link.devices:
        numa = {core.cpus[0]: core.numa for core in node.facts.cores}
        near = tuple(numa.get(rank_place.cpus[0]) if rank_place.cpus else None for rank_place in node_places)
        devices = link.rank_environments(near, backend.env.get("CCL_ATL_TRANSPORT", "mpi"))
    gpus = node.facts.gpus if backend.gpu else ()
    workers = ",".join(str(cpu) for rank_place in node_places for cpu in rank_place.worker_cpus)  # of all ranks
    entries = []
    for rank_place, variables in zip(node_places, devices, strict=True):
        env = local_rank_variables(backend.env, rank_place.local_rank, rank_place.local_world_size)
        if rank_place.worker_cpus:
            count = str(len(rank_place.worker_cpus))
            env |= {"CCL_WORKER_OFFLOAD": "1", "CCL_WORKER_COUNT": count, "CCL_WORKER_AFFINITY": workers}
        gpu = gpus[rank_place.local_rank % len(gpus)].index if gpus else None
        entries.append(RankEntry(**vars(rank_place), env={**env, **variables}, gpu=gpu))
    return entries


def master_port(run_id: str) -> int:
    """Return a port for the rendezvous, derived from the run's id, below Linux's ephemeral range (32768)."""
    return 20000 + int(hashlib.sha256(run_id.encode()).hexdigest(), 16) % 12000


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The path of each local file for the ranks, and the steps that copy them."""

    paths: Mapping[str, str]
    sent: tuple[SendFile | SendFolder | StoreFolder, ...]


def module_folders(recipe: Recipe, run_dir: str, store: str = "") -> tuple[str, ...]:
    """Return the folders of the user's modules that ranks search after those of the stack.

    Args:
        recipe: the recipe.
        run_dir: the folder of the run on the nodes.
        store: the folder of the nodes that has the packages; '' if the ranks use those of this machine.
    """
    source = recipe.source_folder
    if source and recipe.project:
        source = recipe.project.path_in(project_copy(run_dir), source)
    folders = [source] if source else []
    if recipe.packages:
        folders.append(f"{store}/{recipe.packages.digest}" if store else recipe.packages.folder)
    return tuple(folders)


def claims_folder(store: str) -> str:
    """Return the folder next to a node's store in which its runs reserve cores."""
    return str(PurePosixPath(store).with_name("claims"))


def named_files(recipe: Recipe, settings: Mapping[str, Value]) -> list[str]:
    """Return the script, the files of its recipe, and the data files in the settings."""
    data = [str(settings[name]) for name in recipe.paths if name in settings]
    script = [recipe.script_file] if recipe.script_file else []
    return list(dict.fromkeys([*script, *recipe.files, *data]))


def in_train(path: str, run_paths: RunPaths) -> str | None:
    """Return the path of a file of train/ on the nodes; None for other files."""
    if not PurePosixPath(path).is_relative_to(run_paths.train_here):
        return None
    return f"{run_paths.train}/{PurePosixPath(path).relative_to(run_paths.train_here)}"


def project_copy(run_dir: str) -> str:
    """Return the folder of a run's copy of the project, on every node."""
    return f"{run_dir}/{files.PROJECT}"


def working_directory(project: Project | None, run_dir: str) -> str:
    """Return where the script starts in the run's copy of the project; '' without a project."""
    return project.working_directory(project_copy(run_dir)) if project else ""


def project_of_copy(resolved: Resolved) -> Project | None:
    """Return the project as the run's copy of it was or will be made from; None without a project."""
    recipe, resume = resolved.recipe, resolved.run_paths.resume
    if resume and resume.project and recipe.project and not resume.sends_code:
        return resume.project
    return recipe.project


def sent_files(
    resolved: Resolved, nodes: tuple[RunNode, ...], *, python: str, is_shared: bool, has_packages: bool = True
) -> Files:
    """Return the paths of local files for the ranks, and the steps that bring the files there.

    Files of train/ are in the nodes' copy of it. The files of a plug-in recipe and of a project keep their relative
    paths.

    Args:
        resolved: the request in which everything is decided.
        nodes: the nodes that get files.
        python: the interpreter there.
        is_shared: whether the ranks find this machine's files at the same paths. A project is copied in any case.
        has_packages: whether the nodes get the recipe's packages.
    """
    recipe, run_paths, project = resolved.recipe, resolved.run_paths, project_of_copy(resolved)
    program = (python, f"{run_paths.train}/node.py")
    stored = partial(StoreFolder, nodes=nodes, node_program=program, run_dir=run_paths.run_dir)
    paths: dict[str, str] = {}
    sent: list[SendFile | StoreFolder] = []
    if project:
        copy, store_here = project_copy(run_paths.run_dir), run_paths.store_here if is_shared else ""
        if recipe.script_file:
            paths[recipe.script_file] = project.path_in(copy, recipe.script_file)
        sent.append(
            stored(
                source=project.folder,
                files=tuple(project.files),
                path=f"{store_here or run_paths.store}/{project.digest}",
                copy=copy,
                keeps_copies=recipe.project is not None and recipe.project.digest != project.digest,
            )
        )
    for path in named_files(recipe, resolved.settings):
        if path in paths:
            continue
        destination = in_train(path, run_paths) or (path if is_shared else "")
        if not destination:
            destination = f"{run_paths.run_dir}/files/{recipe.sent_path(path, len(paths))}"
            sent.append(SendFile(nodes=nodes, source=path, path=destination))
        paths[path] = destination
    if recipe.packages and has_packages:
        packages = recipe.packages
        sent.append(stored(source=packages.folder, files=(), path=f"{run_paths.store}/{packages.digest}"))
    return Files(paths=paths, sent=tuple(sent))
