"""Files of this machine that the ranks need on other machines, and their paths there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from orch_node.protocol import files
from orch_node.protocol.record import RunNode

from orchestrator.model.project import Project
from orchestrator.model.recipe import Recipe, Value
from orchestrator.planning.plan import CopyFiles, SendFile, StoreFolder
from orchestrator.planning.request import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The path of each local file for the ranks, and the steps that copy them."""

    paths: Mapping[str, str]
    sent: tuple[SendFile | StoreFolder | CopyFiles, ...]


def module_folders(recipe: Recipe, run_dir: str, packages: str = "") -> tuple[str, ...]:
    """Return the folders of the user's modules that ranks search after those of the stack.

    Args:
        recipe: the recipe.
        run_dir: the folder of the run on the nodes.
        packages: the folder of the packages there, or nothing.
    """
    source = recipe.source_folder
    if source and recipe.project:
        source = recipe.project.path_in(project_copy(run_dir), source)
    return tuple(filter(None, [source, packages]))


def claims_folder(store: str) -> str:
    """Return the folder next to a node's store in which its runs reserve cores."""
    return str(PurePosixPath(store).with_name("claims"))


def stored_packages(recipe: Recipe, site: Site) -> str:
    """Return the folder of the packages in the store of the nodes, or nothing."""
    return f"{site.store}/{recipe.packages.digest}" if recipe.packages else ""


def sent_packages(recipe: Recipe, nodes: tuple[RunNode, ...], site: Site, *, python: str) -> tuple[StoreFolder, ...]:
    """Return the step that puts the recipe's packages into the store of nodes, if there are any."""
    if recipe.packages is None:
        return ()
    step = StoreFolder(
        nodes=nodes,
        source=recipe.packages.folder,
        files=(),
        path=stored_packages(recipe, site),
        node_program=(python, f"{site.train}/node.py"),
        run_dir=site.run_dir,
    )
    return (step,)


def named_files(recipe: Recipe, settings: Mapping[str, Value]) -> list[str]:
    """Return the script, the files of its recipe, and the data files in the settings."""
    data = [str(settings[name]) for name in recipe.paths if name in settings]
    script = [recipe.script_file] if recipe.script_file else []
    return list(dict.fromkeys([*script, *recipe.files, *data]))


def in_train(path: str, site: Site) -> str | None:
    """Return the path of a file of train/ on the nodes; None for other files."""
    if not PurePosixPath(path).is_relative_to(site.train_here):
        return None
    return f"{site.train}/{PurePosixPath(path).relative_to(site.train_here)}"


def project_copy(run_dir: str) -> str:
    """Return the folder of a run's copy of the project, on every node."""
    return f"{run_dir}/{files.PROJECT}"


def project_of_copy(recipe: Recipe, site: Site) -> Project | None:
    """Return the project as the run's copy of it was or will be made from; None without a project."""
    resume = site.resume
    if resume and resume.project and recipe.project and not resume.sends_code:
        return resume.project
    return recipe.project


def working_directory(recipe: Recipe, run_dir: str) -> str:
    """Return the folder in which the script starts, in the run's copy of the project; empty without a project."""
    return recipe.project.working_directory(project_copy(run_dir)) if recipe.project else ""


def sent_files(
    recipe: Recipe, settings: Mapping[str, Value], nodes: tuple[RunNode, ...], site: Site, *, python: str
) -> Files:
    """Return the paths of local files on other machines; files of train/ are already there, others are sent.

    The files of a plug-in recipe and of a project keep their relative paths.
    """
    paths: dict[str, str] = {}
    sent: list[SendFile | StoreFolder] = []
    if project := project_of_copy(recipe, site):
        copy, digest = project_copy(site.run_dir), project.digest
        step = StoreFolder(
            nodes=nodes,
            source=project.folder,
            files=tuple(project.files),
            path=f"{site.store}/{digest}",
            node_program=(python, f"{site.train}/node.py"),
            run_dir=site.run_dir,
            copy=copy,
            keeps_copies=recipe.project not in (None, project) and recipe.project.digest != digest,
        )
        sent.append(step)
        paths = {script: project.path_in(copy, script) for script in [recipe.script_file] if script}
    for path in named_files(recipe, settings):
        if path in paths:
            continue
        destination = in_train(path, site)
        if destination is None:
            destination = f"{site.run_dir}/files/{recipe.sent_path(path, len(paths))}"
            sent.append(SendFile(nodes=nodes, source=path, path=destination))
        paths[path] = destination
    return Files(paths=paths, sent=tuple(sent))
