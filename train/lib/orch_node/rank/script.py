"""Find the user's program, a script or a module (`-m NAME`), and run it as __main__."""

from __future__ import annotations

import contextlib
import os
import runpy
import site
import sys
from collections.abc import Mapping, MutableMapping
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from orch_node.protocol import files
from orch_node.protocol.environment import BINDINGS, PYTHON_PATH, python_path
from orch_node.rank.checks import RankError, describe
from orch_node.rank.environment import provisioned_environment

MODULE = "-m"
MISSING = "--missing"
# The module, its metadata, the module that torch loads by an entry point, and the kernels of the same wheel.
BINDINGS_FILES = ("oneccl_bind*", "orch_kernels")


def main(argv: list[str]) -> int:
    """Print for the controller the file of a module, or after --missing the modules that it does not find.

    Modules may be in PYTHONPATH of the inventory, too.
    """
    if argv[:1] == [MISSING]:
        sys.path[:0] = filter(None, provisioned_environment().get("PYTHONPATH", "").split(":"))
        missing = [name for name in argv[1:] if find_spec(name) is None]
        print("\n".join(missing))
        return 1 if missing else 0
    add_module_folders(os.environ)
    try:
        print(check_program([MODULE, *argv]))
    except RankError as error:
        print(error)
        return 1
    return 0


def enter(folder: str) -> None:
    """Change to the folder in which the script starts; a copy of a project has no empty folders.

    Raises:
        OSError: if that is impossible.
    """
    if folder:
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)


def link_bindings(run_dir: Path, environment: Mapping[str, str]) -> None:
    """Create the folder with links to the stack's bindings, unless another rank of this node has done that.

    The bindings find MPI's libraries by their place in the stack, also through a link.

    Raises:
        OSError: if a link cannot be created.
    """
    if source := environment.get(BINDINGS):
        folder = run_dir / files.BINDINGS
        folder.mkdir(exist_ok=True)
        for path in (path for pattern in BINDINGS_FILES for path in Path(source).glob(pattern)):
            with contextlib.suppress(FileExistsError):
                (folder / path.name).symlink_to(path)


def add_module_folders(environment: MutableMapping[str, str]) -> None:
    """Make the user's packages and modules importable here, and in the Python processes that this one starts.

    They come last here, so that they never hide a module of the stack.
    """
    for folder in filter(None, environment.get(PYTHON_PATH, "").split(":")):
        site.addsitedir(folder)  # also reads .pth files
    environment.update(python_path(environment))


def check_program(argv: list[str]) -> str:
    """Return the file of the program, after a module has been found without importing its packages.

    Raises:
        RankError: if there is no such module, or if it is a package without __main__.
    """
    if argv[0] != MODULE:
        return argv[0]
    name = argv[1]
    spec = find_module(name)
    if spec and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = find_module(name)
    if spec is None:
        raise RankError(describe("no-module", name=name, folder=os.getcwd(), python=sys.executable))
    return spec.origin or ""


def find_module(name: str) -> ModuleSpec | None:
    """Return the spec of a module of the working directory or a package, without importing it."""
    top, *parts = name.split(".")
    sys.path.insert(0, os.getcwd())
    try:
        spec = find_spec(top)
        for part in parts:
            path = spec.submodule_search_locations if spec else None
            spec = None if path is None else PathFinder.find_spec(part, path)
    except ValueError:  # not a module name
        return None
    finally:
        sys.path.pop(0)
    return spec


def run_program(argv: list[str]) -> None:
    """Run the program as `python SCRIPT ARGS` or `python -m MODULE ARGS` would.

    Its module remains the main module after its end, because threads and exit handlers may pickle its classes.
    """
    main = sys.modules["__main__"] = ModuleType("__main__")
    if argv[0] == MODULE:
        _, name, *arguments = argv
        sys.argv = [MODULE, *arguments]  # packages see this; the module itself sees its file
        sys.path.insert(0, os.getcwd())
        vars(runpy)["_run_module_as_main"](name)
    else:
        sys.argv = argv
        sys.path.insert(0, str(Path(argv[0]).resolve().parent))
        vars(main)["__file__"] = argv[0]
        exec(compile(Path(argv[0]).read_bytes(), argv[0], "exec", dont_inherit=True), vars(main))  # noqa: S102
