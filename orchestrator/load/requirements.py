"""Find the packages that a user's script requires: in the script, a requirements file or pyproject.toml."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from orch_node.protocol.environment import IMAGE_PACKAGES
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from pydantic import AfterValidator, ConfigDict, Field

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.files import StrictModel, check_requirements_file, parse_toml, read_text, read_toml
from orchestrator.load.projects import NONE
from orchestrator.model.packages import Requirements
from orchestrator.model.printable import masked
from orchestrator.model.recipe import Recipe
from orchestrator.planning.request import TrainRequest
from orchestrator.stacks.stack import Stack

PYPROJECT = "pyproject.toml"
PACKAGE_OPTION = "--with"
# The expression of PEP 723.
BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
INCLUDE = re.compile(r"(-r|--requirement|-c|--constraint)[ =]?\s*(\S.*)")
FIND_LINKS = re.compile(r"(?:-f|--find-links)[ =]\s*(\S.*)")
EDITABLE = re.compile(r"^(-e|--editable)[ =]\s*")
LOCAL = re.compile(r"^(-e|--editable)\b|^\.{0,2}/|^\.$|^file:|@\s*file:")
REMOTE = re.compile(r"\bhttps?://|\b(?:git|hg|svn|bzr)\+")
HASHES = re.compile(r"\s+--hash=.*")
NO_PACKAGES = "To run without them: --requirements none, and no --with."


Name = Annotated[str, AfterValidator(canonicalize_name)]


class Table(StrictModel):
    """A table of which only some keys are read."""

    model_config = ConfigDict(extra="ignore")


class ProjectTable(Table):
    """The table [project] of a pyproject.toml."""

    name: str = ""
    dependencies: list[str] | None = None
    optional: dict[Name, list[str]] = Field(default_factory=dict, alias="optional-dependencies")
    python: Annotated[str, AfterValidator(lambda text: str(SpecifierSet(text)))] = Field("", alias="requires-python")


class UvTable(Table):
    sources: dict[Name, Any] = Field(default_factory=dict)


class ToolTable(Table):
    uv: UvTable = Field(default_factory=UvTable)
    orch: dict[str, Any] | None = None


class Tools(Table):
    """A file or metadata with tables of tools."""

    tool: ToolTable = Field(default_factory=ToolTable)


class ScriptTable(ProjectTable, Tools):
    """The metadata in a script (PEP 723)."""


class Pyproject(Tools):
    project: ProjectTable | None = None


class LockedPackage(Table):
    name: str
    version: str = ""
    source: dict[str, Any] = Field(default_factory=dict)


class LockFile(Table):
    package: list[LockedPackage] = Field(default_factory=list)


def requirements_of(recipe: Recipe, request: TrainRequest, *, common_file: str = "") -> Requirements | None:
    """Return the packages that a run requires; None if nothing names any.

    They are those of `--requirements`, or else of the script's metadata (PEP 723), or else of the pyproject.toml of
    its project, together with those of `--with` and of the inventory.

    Args:
        recipe: the recipe, script or module, with its project.
        request: the request.
        common_file: the requirements file of the inventory, or nothing.

    Raises:
        RequestError: if a file cannot be used.
    """
    option, extras = request.requirements, request.extra
    parts = []
    project = None
    if option not in (None, NONE):
        path = Path(str(option))
        project = path if path.suffix == ".toml" else None
        parts = [named_requirements(path, extras)]
    elif option is None and recipe.own_script:
        inline = script_requirements(Path(recipe.script_file)) if recipe.script_file else None
        project = None if inline else find_pyproject(recipe, extras)
        parts = [inline] if inline else [project_requirements(project, extras)] if project else []
    if extras and not project:
        raise RequestError.about("extra-without-project", extra=extras[0])
    if request.packages:
        parts.append(Requirements(source=PACKAGE_OPTION, lines=checked(request.packages, PACKAGE_OPTION)))
    if common_file and option != NONE:
        parts.append(file_requirements(Path(common_file)))
    return merged(parts) if parts else None


def shared_requirements(*files: str | None) -> Requirements | None:
    """Return the packages of all files for all runs; None if there are none.

    Args:
        files: the value of --requirements and the requirements file of the inventory, or nothing. With `none`, no file
            is read.

    Raises:
        RequestError: if a file cannot be used.
    """
    return None if NONE in files else merged([named_requirements(Path(file)) for file in files if file])


def merged(parts: list[Requirements]) -> Requirements | None:
    """Return all requirements together; None if they name neither a package nor versions of Python."""
    lines = tuple(line for part in parts for line in part.lines)
    if not lines and not any(part.python for part in parts):
        return None
    return Requirements(
        source=" and ".join(part.source for part in parts),
        lines=lines,
        constraints=tuple(line for part in parts for line in part.constraints),
        preferred=tuple(line for part in parts for line in part.preferred),
        python=",".join(part.python for part in parts if part.python),
        uv_sources={name: file for part in parts for name, file in part.uv_sources.items()},
    )


def named_requirements(path: Path, extras: tuple[str, ...] = ()) -> Requirements:
    """Return the packages of a requirements file, a pyproject.toml, or the metadata in a script.

    Raises:
        RequestError: if the file cannot be used.
    """
    if path.suffix in (".toml", ".py"):
        check_requirements_file(path, read_text(path, NO_PACKAGES))
    if path.suffix == ".toml":
        return project_requirements(path, extras)
    if path.suffix != ".py":
        return file_requirements(path)
    if requirements := script_requirements(path):
        return requirements
    raise RequestError(f"{path} has no block '# /// script'.", hint="Add one (PEP 723), or name a requirements file.")


def with_image_requirements(
    recipe: Recipe, request: TrainRequest, stack: Stack, image: str, *, common_file: str = ""
) -> Recipe:
    """Return the recipe with the packages that ranks need from an image in addition to those of the stack.

    Args:
        recipe: the recipe, script or module, with its project.
        request: the request.
        stack: the stack.
        image: the name of the image.
        common_file: the requirements file of the inventory, or nothing.

    Raises:
        RequestError: if --requirements, --extra or --with is used, which cannot change an image.
    """
    if request.requirements not in (None, NONE) or request.extra or request.packages:
        raise RequestError.about("packages-of-image", image=image)
    requirements = requirements_of(recipe, request, common_file=common_file)
    included = {canonicalize_name(name) for name in stack.requirements}
    items = filter(None, map(parse_requirement, requirements.lines if requirements else ()))
    on_linux = (item for item in items if item.marker is None or item.marker.evaluate({"sys_platform": "linux"}))
    needed = {name: str(item) for item in on_linux if (name := canonicalize_name(item.name)) not in included}
    if not requirements or not needed:
        return recipe
    return replace(
        recipe,
        image_requirements=f"{', '.join(masked([*needed.values()]))} ({requirements.source})",
        environment={**recipe.environment, IMAGE_PACKAGES: " ".join(needed)},
    )


def script_requirements(script: Path) -> Requirements | None:
    """Return the packages that the metadata in a script requires; None without metadata (PEP 723)."""
    try:
        text = script.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):  # the check of the script reports it
        return None
    blocks = [match for match in BLOCK.finditer(text) if match["type"] == "script"]
    if not blocks:
        return None
    if len(blocks) > 1:
        raise RequestError(f"{script} has {len(blocks)} blocks '# /// script'.", hint="Join them into one.")
    content = "".join(line[2:] if line.startswith("# ") else line[1:] for line in blocks[0]["content"].splitlines(True))
    table = parse_toml(content, f"the block '# /// script' of {script}", ScriptTable)
    return Requirements(
        source=script.name,
        lines=checked(table.dependencies or [], script.name),
        python=table.python,
        uv_sources=dict.fromkeys(table.tool.uv.sources, str(script)),
    )


def folders_up(start: Path, top: str = "") -> Iterator[Path]:
    """Yield a folder and those above it, up to `top` or else the root of the git repository; outside of git only it."""
    in_repository = any((folder / ".git").exists() for folder in (start, *start.parents))
    for folder in (start, *start.parents):
        yield folder
        if (str(folder) == top) if top else (not in_repository or (folder / ".git").exists()):
            return


def project_folders(recipe: Recipe) -> Iterator[Path]:
    """Return the script's folder and those above it, up to its project."""
    start = Path(recipe.script_file).parent if recipe.script_file else Path.cwd()
    return folders_up(start, recipe.project.folder if recipe.project else "")


def find_pyproject(recipe: Recipe, extras: tuple[str, ...] = ()) -> Path | None:
    """Return the nearest pyproject.toml with dependencies, from the script's folder up to the project's.

    If extras are named, optional dependencies are enough.
    """
    for path in (folder / PYPROJECT for folder in project_folders(recipe)):
        if path.is_file():
            table = read_toml(path, Pyproject).project
            if table and (table.dependencies or (extras and table.optional)):
                return path
    return None


def source_folder(recipe: Recipe) -> str:
    """Return the folder `src` next to the pyproject.toml of a script's project; empty if there is none."""
    for folder in project_folders(recipe) if recipe.own_script else ():
        if (folder / PYPROJECT).is_file() and (folder / "src").is_dir():
            return str(folder / "src")
    return ""


def project_requirements(path: Path, extras: tuple[str, ...]) -> Requirements:
    """Return the dependencies in a pyproject.toml, with the versions from an index in the uv.lock next to it."""
    content = read_toml(path, Pyproject)
    table = content.project
    if table is None or (table.dependencies is None and not extras):
        raise RequestError.about("no-dependencies", path=path)
    lines = [*(table.dependencies or []), *extra_lines(path, table, extras)]
    lock_file = path.with_name("uv.lock")
    packages = read_toml(lock_file, LockFile).package if lock_file.is_file() else []
    locked = tuple(f"{item.name}=={item.version}" for item in packages if item.version and "registry" in item.source)
    return Requirements(
        source=str(path),
        lines=checked(lines, str(path)),
        preferred=locked,
        python=table.python,
        uv_sources=dict.fromkeys(content.tool.uv.sources, str(path)),
    )


def extra_lines(path: Path, table: ProjectTable, extras: Iterable[str]) -> list[str]:
    """Return the lines of optional dependencies, and of those that they name of the same project."""
    lines: list[str] = []
    waiting, done = [canonicalize_name(extra) for extra in extras], set[str]()
    while waiting:
        extra = waiting.pop()
        if extra not in table.optional:
            raise RequestError(f"--extra {extra}: {path} has no such extra.", hint=did_you_mean(extra, table.optional))
        done.add(extra)
        for line in checked(table.optional[extra], str(path)):
            requirement = Requirement(line)
            if canonicalize_name(requirement.name) == canonicalize_name(table.name):
                waiting += {canonicalize_name(name) for name in requirement.extras} - done
            else:
                lines.append(line)
    return lines


def file_requirements(path: Path) -> Requirements:
    """Return the lines of a requirements file and of the files that it names."""
    lines, constraints = list[str](), list[str]()
    for line, is_constraint in requirement_lines(path, ()):
        (constraints if is_constraint else lines).append(line)
    return Requirements(source=str(path), lines=tuple(lines), constraints=tuple(constraints))


def requirement_lines(path: Path, parents: tuple[Path, ...]) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a requirements file, and whether they are constraints.

    Raises:
        RequestError: if a file cannot be read, includes itself, or names a folder of this machine.
    """
    real_path = Path(os.path.realpath(path))
    if real_path in parents:
        raise RequestError(f"{path} includes itself by -r or -c.", hint="Remove that line.")
    content = read_text(path, NO_PACKAGES)
    check_requirements_file(path, content)
    # A comment ends with its line, even if that ends in a backslash.
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)(^|[^\S\n]+)#.*", "", content))
    for line in map(str.strip, text.splitlines()):
        if include := INCLUDE.fullmatch(line):
            for inner, is_constraint in requirement_lines(path.parent / include[2], (*parents, real_path)):
                yield inner, is_constraint or include[1] in ("-c", "--constraint")
        elif LOCAL.search(line) and not REMOTE.search(line):
            raise RequestError.about("local-package", path=path, line=line)
        elif links := FIND_LINKS.fullmatch(line):
            folder = path.parent / links[1]
            yield f"--find-links {folder.absolute() if folder.exists() else links[1]}", False
        elif line:
            line = EDITABLE.sub("", line)
            yield line if line.startswith("-") else checked([line], str(path))[0], False


def checked(lines: Iterable[str], source: str) -> tuple[str, ...]:
    """Return requirements.

    Raises:
        RequestError: if one is neither valid (PEP 508) nor the URL of a package.
    """
    lines = tuple(lines)
    for line in lines:
        try:
            if line.startswith("git@"):  # valid as a package with the name git
                raise InvalidRequirement("it is an address of git")
            Requirement(HASHES.sub("", line))
        except InvalidRequirement as error:
            if REMOTE.search(line) and not HASHES.search(line):  # uv finds out the name, but does not check hashes
                continue
            raise RequestError.about(
                "invalid-requirement", source=source, line=masked([line])[0], reason=str(error).splitlines()[0]
            ) from None
    return lines


def parse_requirement(line: str) -> Requirement | None:
    """Return a line as a requirement; None for an option, or for a URL whose package uv finds out."""
    try:
        return None if line.startswith("-") else Requirement(HASHES.sub("", line))
    except InvalidRequirement:
        return None
