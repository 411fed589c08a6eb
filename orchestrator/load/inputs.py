"""Read the files that a request names, in the same way for every target, and the defaults of a project's requests."""

from __future__ import annotations

import datetime
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from orch_node import permissions
from orch_node.protocol.container import NAME, EnvFileError, read_variables
from orch_node.protocol.environment import find_reserved
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.files import TRAIN, entry_points, other_owner
from orchestrator.load import definitions, requirements
from orchestrator.load.files import parse_toml, read_table, read_text
from orchestrator.load.packages import packages_for
from orchestrator.load.projects import has_module, project_of
from orchestrator.load.scripts import RanksPython, check_script, with_parser
from orchestrator.model.facts import Facts
from orchestrator.model.printable import SECRET_VARIABLE
from orchestrator.planning.accelerate_options import AccelerateOptions, parse_options
from orchestrator.planning.recorded_request import value_of
from orchestrator.planning.request import Resume, RunPaths, TrainRequest, flag
from orchestrator.planning.resolve import Inputs
from orchestrator.planning.sweep import Member, combinations, parse_lines, without_limit
from orchestrator.stacks.stack import python_for


def array_members(arguments: Sequence[str], sample: int | None) -> list[Member]:
    """Return the runs of an array, whose values are in its arguments or in the lines of a file.

    Raises:
        PlanError: if an argument or a line is malformed.
        RequestError: if the file cannot be read, or is mixed with values.
    """
    files = [argument[1:] for argument in arguments if argument.startswith("@")]
    if not files:
        return combinations(arguments, sample)
    if len(arguments) > 1 or sample is not None:
        raise RequestError.about("array-file", file=files[0])
    path = Path(without_limit(files[0]))
    return parse_lines(read_text(path, "Write the arguments of one run in each line."), str(path))


def inputs(
    request: TrainRequest,
    *,
    image: str = "",
    nodes: Sequence[Facts] = (),
    user_python: str = "",
    local_python: str = "",
    shares_files: bool = False,
    common_file: str = "",
    has_project: bool | None = None,
    left_out: Iterable[Path] = (),
    volume: str = "",
) -> Inputs:
    """Load the files that a request names.

    Args:
        request: the request.
        image: what errors call the image that has the ranks' software; '' if it is the stack of the nodes.
        nodes: the facts of the nodes with the stack; empty if they are unknown.
        user_python: the interpreter that --python names, whose packages `nodes` have; '' for that of the stack.
        local_python: the ranks' Python, if it runs on this machine and finds the modules that the ranks find; or ''.
        shares_files: whether the ranks find the files of this machine at the same paths.
        common_file: a file with packages for all runs, or ''.
        has_project: whether a project is sent if --project does not decide it; None for all but modules of the stack.
        left_out: files and folders that are not sent, in addition to recorded runs.
        volume: a folder that only the ranks see, in which settings may name files; or ''.

    Raises:
        OrchError: if a file cannot be used.
    """
    recipe = definitions.recipe(request.recipe, tuple(map(Path, request.recipe_path)), module=request.module)
    stack = definitions.stack(request.stack)
    # The tests check the defaults and presets of orch's own recipes.
    if not recipe.own_script and (recipe.files or request.settings or request.script_args or request.array):
        recipe = with_parser(recipe, local_python)
    values = definitions.settings(request.settings, recipe, volume) if request.settings else {}
    if has_project is None:
        module_folders = (Path(), *map(Path, filter(None, [requirements.source_folder(recipe)])))
        has_project = not request.module or any(has_module(folder, request.recipe) for folder in module_folders)
    if has_project or request.project is not None:
        left_out = (Path(request.runs_dir), *left_out)
        project = project_of(recipe, request.project, limit=request.project_limit, left_out=left_out)
        recipe = replace(recipe, project=project)
    if recipe.project or shares_files:
        recipe = replace(recipe, source_folder=requirements.source_folder(recipe))
    if user_python:
        stack = stack.for_user_python(user_python, nodes[0].packages, own_script=recipe.own_script)
    imports = None
    if image:
        recipe = requirements.with_image_requirements(recipe, request, stack, image, common_file=common_file)
        imports = check_script(request, recipe, RanksPython(version=python_for(stack), image=True))
    elif user_packages := requirements.requirements_of(recipe, request, common_file=common_file):
        recipe = replace(recipe, packages=packages_for(user_packages, nodes, user_python or f"stack '{stack.name}'"))
    if nodes and not image:
        facts, source = nodes[0], user_python or f"stack {stack.name}"
        python = RanksPython(version=facts.python, local_path=local_python, source=source, packages=facts.packages)
        imports = check_script(request, recipe, python)
    backends = map(definitions.load_entry_point, entry_points().select(group=definitions.BACKENDS))
    plugins = {backend.name: backend for backend in backends}
    return Inputs(recipe=recipe, stack=stack, settings=values, plugins=plugins, imports=imports)


def environment(assignments: Sequence[str], file: Path | None, shell: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of --env and --env-file; --env wins.

    Args:
        assignments: NAME=VALUE, or NAME for the value in the shell.
        file: a file in the format of `docker run --env-file`, or None.
        shell: the environment of this process.

    Raises:
        RequestError: if a variable is malformed or not set, is set by orch, or holds a secret.
    """
    try:
        variables = read_variables(file, shell) if file else {}
    except EnvFileError as error:
        message = str(error).removeprefix("env_file ")
        raise RequestError(f"--env-file {message}.", hint="Each line is NAME=VALUE, NAME, or a # comment.") from None
    for assignment in assignments:
        name, has_value, value = assignment.partition("=")
        if not NAME.fullmatch(name) or "\0" in value:
            raise RequestError(f"--env {name!r}: not the name of a variable.", hint="--env NAME=VALUE, or --env NAME")
        if not has_value and name not in shell:
            raise RequestError(f"--env {name}: the variable is not set here.", hint=f"--env {name}=VALUE")
        variables[name] = value if has_value else shell[name]
    if secret := next(filter(SECRET_VARIABLE.search, variables), None):
        raise RequestError.about("secret-variable", secret=secret)
    if reserved := find_reserved(variables):
        raise RequestError(f"{reserved[0]}: {reserved[1]}.", hint="Leave it out of --env and --env-file.")
    return variables


def accelerate_config(name: str) -> AccelerateOptions:
    """Return the options in a configuration file of accelerate.

    Raises:
        RequestError: if the file cannot be read.
        PlanError: if orch cannot train with it.
    """
    path = Path(name).expanduser()
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML too
        if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
            raise ValueError("it has no names and values")
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RequestError.about("accelerate-config-file", name=name, error=error) from None
    return parse_options(values, str(path), read_table(Path(__file__).with_name("accelerate_config.toml")))


TABLE = "[tool.orch]"
INVENTORY = "inventory"
# Options that suit all runs of a project, by their names on the command line.
KEYS = {
    flag(name).removeprefix("--"): name
    for name in (
        *(INVENTORY, "on", "nodes", "exclude", "wait_for_cores", "ppn", "launcher", "mpi", "backend", "ccl_workers"),
        *("fabric", "precision", "kernels", "stack", "python", "requirements", "packages", "env", "env_file"),
        *("project_limit", "stall_timeout", "max_restarts", "spare_nodes", "min_nodes", "stop_on_nan", "image"),
        *("image_options", "recipe_path", "runs_dir"),
    )
}
PATHS = (INVENTORY, "python", "requirements", "env_file", "recipe_path", "runs_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """The defaults that a project sets.

    Attributes:
        path: the file, relative to the current folder; empty if there is none.
        values: the values by the fields of the request.
    """

    path: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def tool_options() -> ToolOptions:
    """Return the options of the nearest pyproject.toml with the table, up to the root of the git repository.

    Outside of git only the current folder counts.

    Raises:
        RequestError: if the table has an unknown key or a wrong value, or the file cannot be read or belongs to
            another user.
    """
    for folder in requirements.folders_up(Path.cwd()):
        path = folder / requirements.PYPROJECT
        if path.is_file() and "orch" in (text := read_text(path)):
            table = parse_toml(text, path, requirements.Tools).tool.orch
            if table is not None:
                return parse_table(path, table)
    return ToolOptions()


def parse_table(path: Path, table: Mapping[str, object]) -> ToolOptions:
    """Return the options of a table; paths become relative to the current folder.

    Raises:
        RequestError: if the table has an unknown key or a wrong value, or the file belongs to another user.
    """
    name = os.path.relpath(path)
    if owner := other_owner(path):
        raise RequestError.about("untrusted-options", name=name, owner=owner)
    kinds = get_type_hints(TrainRequest)
    values = {}
    for key, value in table.items():
        if key not in KEYS:
            raise RequestError(f"{name}: {TABLE} has the unknown key {key!r}.", hint=did_you_mean(key, KEYS))
        if key == "ppn" and value == "auto":
            continue
        try:
            parsed = value_of(kinds[KEYS[key]], value, f"{name}: {TABLE} {key}")
        except ProtocolError as error:
            raise RequestError(f"{error}", hint=f"`orch train --help` explains {flag(KEYS[key])}.") from None
        values[KEYS[key]] = with_path(KEYS[key], parsed, path.parent)
    return ToolOptions(path=name, values=values)


def with_path(name: str, value: Any, folder: Path) -> Any:
    """Return the value of an option, with a path below the folder of the file relative to the current folder."""
    if name not in PATHS or folder == Path.cwd():
        return value
    if isinstance(value, tuple):
        return tuple(with_path(name, item, folder) for item in value)
    candidates = [folder / value, *([folder / "inventory" / value] if name == INVENTORY else [])]
    path = next((candidate for candidate in candidates if candidate.exists() or name == "runs_dir"), None)
    return type(value)(os.path.relpath(path)) if path else value


def run_id(stamp: str, recipe: str, suffix: str) -> str:
    """Return a run id of time, recipe and suffix, so that lists of ids are sorted by time."""
    letters = (letter if letter.isascii() and letter.isalnum() else "-" for letter in recipe)
    return f"{stamp}-{''.join(letters)[:40]}-{suffix}"


def run_paths_of(
    resume: Resume | None, recipe: str, runs: str, name: Callable[[str, str, str], str] = run_id, **folders: Any
) -> RunPaths:
    """Return the identity and the folders of a new run, or those of the run that is resumed.

    Args:
        resume: the run whose next attempt is planned, or None.
        recipe: the name of the recipe.
        runs: the folder of runs on the nodes.
        name: returns the run id for the local time, the name of a recipe and random digits.
        folders: `train`, and further folders of the result.
    """
    if resume:
        names = ("run_id", "run_dir", "started_by", "created")
        identity: dict[str, Any] = {name: getattr(resume.record, name) for name in names}
    else:
        new_id = name(datetime.datetime.now().strftime("%Y%m%d-%H%M%S"), recipe, secrets.token_hex(2))
        identity = {"run_id": new_id, "run_dir": f"{runs}/{new_id}", "created": round(time.time(), 3)}
        identity["started_by"] = f"{permissions.user_name(os.getuid())}@{socket.gethostname()}"
    return RunPaths(**identity, train_here=str(TRAIN), resume=resume, **folders)
