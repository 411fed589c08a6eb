"""Check a script before anything is started: its syntax, its imports, and the arguments that its parser accepts."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import resolve_name
from pathlib import Path

from orch_node.protocol.environment import PYTHON_PATH

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.files import LIB, STANDALONE, TRAIN, cache_home, private_folder, write_whole
from orchestrator.load.files import read_table
from orchestrator.model.printable import one_line
from orchestrator.model.project import Imports
from orchestrator.model.recipe import TEXT, TYPES, Recipe, Setting, Value
from orchestrator.planning.request import TrainRequest

INIT = "__init__.py"
DISTRIBUTIONS = Path(__file__).with_name("distributions.toml")
INCLUDED_MODULES = ("orch_node", "orch_training")  # that ranks find after all others
# Attributes of sys with which a script changes where modules are found.
IMPORT_SETTINGS = ("path", "meta_path", "path_hooks", "modules")
STARTS_PROGRAM = ("system", "run", "call", "check_call", "check_output", "Popen", "getoutput", "main")
MISSING_MODULES = (str(TRAIN / "node.py"), "find-module", "--missing")


@dataclass(frozen=True, slots=True)
class Files:
    """The files that ranks see: those of this machine, or those that are sent to them.

    Attributes:
        sent: the absolute paths of the files that are sent; None if ranks see those of this machine.
        modules: the possible modules in each folder that was asked for.
    """

    sent: Collection[str] | None = None
    modules: dict[Path, set[str]] = field(default_factory=dict)

    def is_file(self, path: Path) -> bool:
        return path.is_file() if self.sent is None else str(path) in self.sent

    def has_module(self, folder: Path, name: str) -> bool:
        """Return whether a folder has a file or a folder that may be this module, also an extension module."""
        if folder not in self.modules:
            paths, prefix = map(str, folder.glob("*")) if self.sent is None else self.sent, os.path.join(folder, "")
            entries = (path[len(prefix) :].partition("/")[0] for path in paths if path.startswith(prefix))
            self.modules[folder] = {entry.partition(".")[0] for entry in entries}
        return name in self.modules[folder]


def external_imports(script: Path, files: Files, folder: Path) -> dict[str, str]:
    """Return the modules that a script imports from elsewhere, with the name of the file that imports each.

    Only imports that always happen are read: those in the script and in the modules next to it, outside of functions,
    conditions and try. There are none if a file changes sys.path or installs packages.

    Args:
        script: the script, or the file of a module.
        files: the files that ranks see.
        folder: where Python looks first: that of the script, or the working directory for a module.
    """
    imports: dict[str, str] = {}
    packages = script.relative_to(folder).parents  # those above a module are executed before it
    pending = [script, *(path for parent in packages[:-1] if files.is_file(path := folder / parent / INIT))]
    queued = set(pending)
    while pending:
        file = pending.pop()
        relative = file.relative_to(folder)
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, ValueError, SyntaxError):  # the ranks report it
            continue
        if changes_imports(tree):
            return {}
        for name in imported_names(tree, ".".join(relative.parent.parts)):
            top, *_ = name.split(".")
            if not files.has_module(folder, top):
                imports.setdefault(top, str(relative))
            new_files = {path for path in module_files(folder, name) if files.is_file(path)} - queued
            pending += sorted(new_files)
            queued |= new_files
    return imports


def imported_names(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the full names of the modules that a file of a package always imports, or of members of these."""
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            try:
                module = resolve_name("." * statement.level + (statement.module or ""), package)
            except ImportError:  # it leads out of the package
                continue
            yield from (f"{module}.{alias.name}" for alias in statement.names)


def module_files(folder: Path, name: str) -> Iterator[Path]:
    """Yield the files that may be executed when a module is imported from a folder."""
    path = folder
    for part in name.split("."):
        path /= part
        yield from (path.with_suffix(".py"), path / INIT)


def changes_imports(tree: ast.Module) -> bool:
    """Return whether a file mentions sys.path or the like, or starts pip."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="sys"), attr=name) if name in IMPORT_SETTINGS:
                return True
            case ast.Attribute(value=ast.Name(), attr="addsitedir"):
                return True
            case ast.ImportFrom(module="sys", names=names) if any(alias.name in IMPORT_SETTINGS for alias in names):
                return True
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in STARTS_PROGRAM:
                texts = [str(inner.value) for inner in ast.walk(node) if isinstance(inner, ast.Constant)]
                if any("pip" in text.split() for text in texts):
                    return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksPython:
    """The Python of the ranks.

    Attributes:
        version: its version, or the usual one of an image.
        local_path: its path, if it runs on this machine and finds the modules that the ranks find; or ''.
        image: whether it is that of an image, whose version may differ.
        source: the stack or the path that describes it in messages, such as `stack current`.
        packages: its packages, as far as they are known.
    """

    version: str
    local_path: str = ""
    image: bool = False
    source: str = ""
    packages: Collection[str] = ()


def check_script(request: TrainRequest, recipe: Recipe, python: RanksPython) -> Imports | None:
    """Check the script of a run, its arguments, and on this machine its imports.

    Returns:
        The imports that are still to be checked, on another machine, or None.

    Raises:
        RequestError: if the script cannot run, or is one of orch's own and does not know an argument.
    """
    if not recipe.own_script:
        check_script_arguments(recipe, request.script_args)
        return None
    is_local = bool(python.local_path)
    path = find_module(python, recipe) if recipe.module and is_local else recipe.script_file
    if path:
        check_syntax(path, python)
    if python.image or any(item.startswith("PYTHONPATH=") for item in request.env):
        return None
    if python.packages and "torch" not in python.packages:  # planning explains that the stack is not installed
        return None
    imports = read_imports(recipe, path, python)
    if not imports.importers:
        return None
    if not is_local:
        return imports
    command = [python.local_path, *MISSING_MODULES, *imports.importers]
    with contextlib.suppress(OSError):  # the ranks report an interpreter that does not start
        imports.check(subprocess.run(command, capture_output=True, text=True, errors="replace").stdout.split())
    return None


def check_script_arguments(recipe: Recipe, arguments: Sequence[str]) -> None:
    """Check that the parser of a recipe's script knows all options after `--`, if orch knows the parser.

    Raises:
        RequestError: for the first option that it does not know.
    """
    if not recipe.has_parser:
        return
    names = {*recipe.declared, *recipe.passed_by_orch}
    for option in (word.partition("=")[0] for word in arguments if word.startswith("--") and word != "--"):
        name = option[2:].replace("-", "_")
        # argparse also accepts the beginning of a name, and transformers adds --no_NAME for switches.
        normalized_names = (argument.replace("-", "_") for argument in names)
        if not any(argument.startswith((name, name.removeprefix("no_"))) for argument in normalized_names):
            hint = did_you_mean(name, names, listing=recipe.listing)
            raise RequestError(f"The script of recipe '{recipe.name}' knows no argument '{option}'.", hint=hint)


def read_imports(recipe: Recipe, path: str, python: RanksPython) -> Imports:
    """Return the modules that the ranks of a script import from the packages of their Python.

    Args:
        recipe: the script or module.
        path: its file; empty if that is not known.
        python: the ranks' Python; its known packages are left out.
    """
    working_directory = Path.cwd()
    if recipe.project:
        files = Files({f"{recipe.project.folder}/{name}" for name in recipe.project.files})
    else:
        files = Files() if python.local_path else Files({recipe.script_file})
    folder = working_directory if recipe.module else Path(path).parent
    importers: dict[str, str] = {}
    if not path:
        importers = {recipe.script.partition(".")[0]: f"-m {recipe.script}"}
    elif Path(path).is_relative_to(folder):
        importers = external_imports(Path(path), files, folder)
    folders = [Path(folder) for folder in recipe.module_folders]
    if any(any(path.glob("*.pth")) for path in folders):  # which may add any folder
        importers = {}
    locations = [(files, working_directory), *((Files(), path) for path in folders)]
    installed = {*sys.stdlib_module_names, *INCLUDED_MODULES, *(name.replace("-", "_") for name in python.packages)}
    return Imports(
        importers={
            name: importer
            for name, importer in importers.items()
            if name not in installed and not any(visible.has_module(path, name) for visible, path in locations)
        },
        source=python.source,
        distributions=read_table(DISTRIBUTIONS) if importers else {},
    )


def check_syntax(script: str, python: RanksPython) -> None:
    """Check the syntax of a script; the ranks report one that cannot be read.

    Args:
        script: the path of the script.
        python: the ranks' Python.

    Raises:
        RequestError: with the line of a syntax error, unless the ranks have a newer Python than this one.
    """
    try:
        with warnings.catch_warnings(), contextlib.suppress(OSError, ValueError):
            warnings.simplefilter("ignore")
            compile(Path(script).read_bytes(), script, "exec", dont_inherit=True)
    except SyntaxError as error:
        if not is_newer(python.version):
            line = f", line {error.lineno}" if error.lineno else ""
            newer = f" If the image has a newer Python than {python.version}, call orch with that one."
            problem = one_line(f"{script}{line}: {error.msg}{f': {error.text.strip()}' if error.text else ''}")
            raise RequestError(problem, hint=f"Nothing was started.{newer if python.image else ''}") from None


def is_newer(version: str) -> bool:
    """Return whether a version of Python is newer than this one, or unknown."""
    parts = version.split(".")[:2]
    return not all(map(str.isdigit, parts)) or tuple(map(int, parts)) > sys.version_info[:2]


def find_module(python: RanksPython, recipe: Recipe) -> str:
    """Return the file of the recipe's module that a Python of this machine finds from the current folder.

    Raises:
        RequestError: if it finds none.
    """
    command = (python.local_path, str(TRAIN / "node.py"), "find-module", recipe.script)
    environment = {**os.environ, PYTHON_PATH: ":".join(recipe.module_folders)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        reason = (done.stdout + done.stderr).strip().removesuffix(".")
        raise RequestError.about("module-not-found", recipe=recipe, reason=reason)
    return done.stdout.strip()


PROGRESS = logging.getLogger(__name__)
PROGRAM = STANDALONE / "script_arguments.py"
PARSER_SECONDS = 300.0  # importing torch and transformers from a shared file system can be slow
CHECK_HINT = "orch runs the script up to its argument parser, to check its settings. Nothing was started."
PARSER = re.compile(rb"argparse|Argument_?Parser|orch_training|tyro", re.IGNORECASE)
TRACEBACK_LINE = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
MODULE_NOT_FOUND = "ModuleNotFoundError: No module named "


def with_parser(recipe: Recipe, python: str = "") -> Recipe:
    """Return a recipe with the settings that the parser of its script knows.

    Args:
        recipe: the recipe.
        python: the ranks' Python if it runs on this machine, or '' for that of orch.

    Raises:
        RequestError: if the script fails before it parses its arguments, or does not know a setting of recipe.toml.
    """
    python = python or sys.executable
    try:
        settings = parser_settings(recipe, python)
    except UnknownSettingsError as error:
        # The type of a default may be narrower than what the parser accepts: 1 for a number.
        settings = {name: Setting() for name in recipe.defaults} | {**recipe.declared}
        return replace(recipe, declared=settings, unchecked=str(error))
    untyped = {} if settings else recipe.defaults  # without a parser, these show the types
    typed = {name: Setting(TYPES.get(type(value), TEXT)) for name, value in untyped.items()}
    recipe = replace(recipe, declared={**typed, **recipe.declared, **settings}, has_parser=bool(settings))
    tables: dict[str, Mapping[str, Value | None]] = {
        "paths": dict.fromkeys(recipe.paths),
        **{f"excludes.{name}": dict.fromkeys([name, *names]) for name, names in recipe.excludes.items()},
        "settings": recipe.defaults,
        **{f"presets.{name}": values for name, values in recipe.presets.items()},
    }
    for table, values in tables.items():
        recipe.check_values(values, f"{Path(recipe.script).parent}/recipe.toml: {table}.")
    return recipe


class UnknownSettingsError(Exception):
    """The script cannot run on this machine up to its parser."""


def parser_settings(recipe: Recipe, python: str) -> dict[str, Setting]:
    """Return the settings that the parser knows; none without a parser.

    Only a script that uses a parser of argparse's kind is run. The settings are cached until it, the modules next to
    it, or the packages of the Python change.

    Raises:
        UnknownSettingsError: if this machine lacks a module that the script imports.
    """
    modules = [file for file in recipe.files if file.endswith(".py")]
    if recipe.files and not any(PARSER.search(Path(file).read_bytes()) for file in modules):
        return {}
    folder = private_folder(cache_home() / "settings")
    files = [(str(path), path.stat().st_mtime_ns) for path in sources(recipe, python)]
    content = [python, recipe.script, sorted(recipe.environment.items()), files]
    path = folder / f"{hashlib.sha256(json.dumps(content).encode()).hexdigest()}.json"
    if not path.exists():
        PROGRESS.info("settings: reading the arguments of %s (once)", Path(recipe.script).name)
        write_whole(path, query_parser(recipe, python))
    options = json.loads(path.read_text() or "{}")
    return {name: Setting(**{**fields, "choices": tuple(fields["choices"])}) for name, fields in options.items()}


def sources(recipe: Recipe, python: str) -> Iterator[Path]:
    """Yield the files on which the parser depends: modules of the recipe and of orch, and folders of packages."""
    folder = Path(recipe.script).parent
    yield from sorted((folder if recipe.files else folder.parent).rglob("*.py"))
    yield from sorted((LIB / "orch_training").rglob("*.py"))
    yield PROGRAM
    yield from sorted(Path(python).parent.parent.glob("lib*/python*/site-packages"))


def query_parser(recipe: Recipe, python: str) -> str:
    """Run the script and return what STANDALONE/script_arguments.py prints."""
    path = os.pathsep.join(filter(None, [str(LIB), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **recipe.environment, "PYTHONPATH": path}
    command = [python, str(PROGRAM), recipe.script]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=PARSER_SECONDS
        )
    except (OSError, UnicodeDecodeError, subprocess.TimeoutExpired) as error:
        raise RequestError(f"{recipe.script} does not parse its arguments: {error}.", hint=CHECK_HINT) from None
    if done.returncode == 0:
        return done.stdout
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if reason.startswith(MODULE_NOT_FOUND):
        module = reason.removeprefix(MODULE_NOT_FOUND).split(";")[0].strip("'")
        raise UnknownSettingsError(f"{python} has no {module}; the script checks its arguments when the ranks start")
    frames = TRACEBACK_LINE.findall(done.stderr) or [(recipe.script, "")]
    raise RequestError(f"{', line '.join(filter(None, frames[-1]))}: {reason.removesuffix('.')}.", hint=CHECK_HINT)
