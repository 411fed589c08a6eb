"""Checks of a script before anything is started: its file, its syntax and its arguments."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from orch_node.protocol.environment import PYTHON_PATH

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.imports import INIT, Files, external_imports, files_of
from orchestrator.model.imports import Imports
from orchestrator.model.printable import one_line
from orchestrator.model.recipe import Recipe
from orchestrator.paths import TRAIN
from orchestrator.planning.request import TrainRequest

NOTEBOOK_LINE = re.compile(r"\s*[!%]\s*\w")
MISSING_MODULES = (str(TRAIN / "node.py"), "find-module", "--missing")


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksPython:
    """The Python of the ranks.

    Attributes:
        version: its version, or the usual one of an image.
        local_path: its path, if it runs on this machine and finds the modules that the ranks find; or ''.
        image: whether it is that of an image, whose version may differ.
        source: the stack or the path that describes it in messages, such as `stack current`.
        packages: its packages, as far as they are known.
        module_folders: folders of the user's modules, which the ranks search after those of the stack.
    """

    version: str
    local_path: str = ""
    image: bool = False
    source: str = ""
    packages: Collection[str] = ()
    module_folders: tuple[str, ...] = ()


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
    path = find_module(python, recipe.script) if recipe.module and is_local else recipe.script_file
    if path:
        check_syntax(path, python)
    if path and not recipe.module:
        check_relative_imports(Path(path))
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
        imports.check(subprocess.run(command, capture_output=True, text=True, check=False).stdout.split())
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
            raise RequestError(
                f"The script of recipe '{recipe.name}' knows no argument '{option}'.",
                hint=did_you_mean(name, names, listing=recipe.listing),
            )


def read_imports(recipe: Recipe, path: str, python: RanksPython) -> Imports:
    """Return the modules that the ranks of a script import from the packages of their Python.

    Args:
        recipe: the script or module.
        path: its file; empty if that is not known.
        python: the ranks' Python; its known packages are left out.
    """
    files = files_of(recipe.project, recipe.script_file, is_remote=not python.local_path)
    this_machine, working_directory = Files(None), Path.cwd()
    folder = working_directory if recipe.module else Path(path).parent

    def is_available(name: str) -> bool:
        folders = [Path(path) for path in python.module_folders]
        if any(this_machine.has_module(path, name) for path in folders):
            return True
        # A .pth file may add any folder.
        return files.has_module(working_directory, name) or any(any(path.glob("*.pth")) for path in folders)

    importers: dict[str, str] = {}
    if not path:
        top, *_ = recipe.script.split(".")
        if not is_available(top):
            importers = {top: f"-m {recipe.script}"}
    elif Path(path).is_relative_to(folder):
        importers = external_imports(Path(path), files, folder, is_available)
    recorded = {name.replace("-", "_") for name in python.packages}
    return Imports(
        importers={name: importer for name, importer in importers.items() if name not in recorded},
        source=python.source,
        project_modules=files.modules_in(folder),
    )


def check_syntax(script: str, python: RanksPython) -> None:
    """Check that Python can compile a script, unless its ranks have a newer Python than this one.

    Args:
        script: the path of the script.
        python: the ranks' Python.

    Raises:
        RequestError: with the line of a syntax error.
    """
    major, _, remainder = python.version.partition(".")
    minor = remainder.partition(".")[0]
    if not (major.isdigit() and minor.isdigit()) or (int(major), int(minor)) > sys.version_info[:2]:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(Path(script).read_bytes(), script, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f": {error.text.strip()}" if error.text else ""
        cell = " Lines with ! or % belong to notebooks; remove them." if NOTEBOOK_LINE.match(error.text or "") else ""
        newer = f" If the image has a newer Python than {python.version}, call orch with that one."
        raise RequestError(
            one_line(f"{script}, line {error.lineno}: {error.msg}{line}"),
            hint=f"Nothing was started.{cell}{newer if python.image else ''}",
        ) from None
    except (OSError, ValueError):  # the ranks report it
        return


def check_relative_imports(script: Path) -> None:
    """Check that a script has no relative import outside of functions, conditions and try, which always fails.

    Raises:
        RequestError: with the module to name instead of the script.
    """
    try:
        content = script.read_bytes()
        statements = [] if b"__package__" in content else ast.parse(content).body  # some files set their package
    except (OSError, ValueError, SyntaxError):  # the ranks report it
        return
    imports = [statement for statement in statements if isinstance(statement, ast.ImportFrom)]
    statement = next((statement for statement in imports if statement.level), None)
    if statement is None:
        return
    package = next(parent for parent in script.parents if not (parent / INIT).is_file())
    package = script.parent.parent if package == script.parent else package
    module = ".".join(script.relative_to(package).with_suffix("").parts)
    raise RequestError(
        f"{script}, line {statement.lineno}: a script cannot import with a leading dot, because it has no package.",
        hint=f"Nothing was started. Run it as a module, in the folder {package}: orch train -m {module}",
    )


def find_module(python: RanksPython, name: str) -> str:
    """Return the file of a module that a Python of this machine finds from the current folder.

    Raises:
        RequestError: if it finds none.
    """
    command = (python.local_path, str(TRAIN / "node.py"), "find-module", name)
    environment = {**os.environ, PYTHON_PATH: ":".join(python.module_folders)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        reason = (done.stdout + done.stderr).strip().removesuffix(".")
        raise RequestError(
            f"-m {name}: {reason}.",
            hint="As with `python -m`, the current folder is searched, then the packages of the "
            "stack. Call orch in the folder that the name begins in, or install the package there.",
        )
    return done.stdout.strip()
