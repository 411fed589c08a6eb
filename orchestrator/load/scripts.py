"""Checks of a script before anything is started: its file, its syntax and its arguments."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import RequestError
from orchestrator.load.script_arguments import check_script_arguments
from orchestrator.model.printable import one_line
from orchestrator.model.recipe import Recipe
from orchestrator.paths import TRAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksPython:
    """The Python of the ranks.

    Attributes:
        version: its version, or the usual one of an image.
        local_path: its path, if it runs on this machine and finds the modules that the ranks find; or ''.
        image: whether it is that of an image, whose version may differ.
    """

    version: str
    local_path: str = ""
    image: bool = False


def check_script(recipe: Recipe, arguments: Sequence[str], python: RanksPython) -> None:
    """Check the script of a run and its arguments.

    Raises:
        RequestError: if the script cannot run, or is one of orch's own and does not know an argument.
    """
    check_script_arguments(recipe, arguments)
    if recipe.own_script:
        path = (
            find_module(python.local_path, recipe.script) if recipe.module and python.local_path else recipe.script_file
        )
        if path:
            check_syntax(path, python)


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
        newer = f" If the image has a newer Python than {python.version}, call orch with that one."
        raise RequestError(
            one_line(f"{script}, line {error.lineno}: {error.msg}{line}"),
            hint=f"Nothing was started.{newer if python.image else ''}",
        ) from None
    except (OSError, ValueError):  # the ranks report it
        return


def find_module(python: str, name: str) -> str:
    """Return the file of a module that a Python of this machine finds from the current folder.

    Raises:
        RequestError: if it finds none.
    """
    command = (python, str(TRAIN / "node.py"), "find-module", name)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stdout + done.stderr).strip().removesuffix(".")
        raise RequestError(
            f"-m {name}: {reason}.",
            hint="As with `python -m`, the current folder is searched, then the packages of the "
            "stack. Call orch in the folder that the name begins in, or install the package there.",
        )
    return done.stdout.strip()
