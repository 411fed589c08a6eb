"""Find out which modules a user's script imports that its project does not contain."""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from orchestrator.model.project import Project

INIT = "__init__.py"
INCLUDED_MODULES = ("orch_node", "orch_training")  # that ranks find after all others
# Attributes of sys with which a script changes where modules are found.
IMPORT_SETTINGS = ("path", "meta_path", "path_hooks", "modules")
STARTS_PROGRAM = ("system", "run", "call", "check_call", "check_output", "Popen", "getoutput", "main")


class UnknownImportsError(Exception):
    """A file changes where modules are found, or installs some itself."""


class Files:
    """The files that ranks see: those of this machine, or those that are sent to them.

    Attributes:
        sent: the absolute paths of the files that are sent; None if ranks see those of this machine.
        names: the names in each folder, as far as they are known.
    """

    def __init__(self, sent: Collection[str] | None) -> None:
        self.sent = sent
        self.names: dict[str, set[str]] = {}
        for path in sent or ():
            folder, _, name = path.rpartition("/")
            while folder and name not in self.names.setdefault(folder, set()):
                self.names[folder].add(name)
                folder, _, name = folder.rpartition("/")

    def is_file(self, path: Path) -> bool:
        return path.is_file() if self.sent is None else str(path) in self.sent

    def has_module(self, folder: Path, name: str) -> bool:
        """Return whether a folder has a file or a folder that may be this module, also an extension module."""
        if self.sent is None and str(folder) not in self.names:
            with contextlib.suppress(OSError):
                self.names[str(folder)] = set(os.listdir(folder))
        return any(entry.partition(".")[0] == name for entry in self.names.get(str(folder), ()))

    def modules_in(self, folder: Path) -> tuple[str, ...]:
        """Return the modules and packages in a folder."""
        names = self.names.get(str(folder), ())
        return tuple(name.removesuffix(".py") for name in sorted(names) if name.endswith(".py") or "." not in name)


def files_of(project: Project | None, script: str, *, is_remote: bool) -> Files:
    """Return the files that ranks see: those of the project, of this machine, or the script alone on other machines."""
    if project is not None:
        return Files({f"{project.folder}/{name}" for name in project.files})
    return Files({script} if is_remote else None)


def external_imports(script: Path, files: Files, folder: Path, is_available: Callable[[str], bool]) -> dict[str, str]:
    """Return the modules that a script imports from elsewhere, with the name of the file that imports each.

    Only imports that always happen are read: those in the script and in the modules next to it, outside of functions,
    conditions and try. There are none if a file changes sys.path or installs packages.

    Args:
        script: the script, or the file of a module.
        files: the files that ranks see.
        folder: where Python looks first: that of the script, or the working directory for a module.
        is_available: returns whether the ranks find a top-level module in another folder.
    """
    imports: dict[str, str] = {}
    packages = script.relative_to(folder).parents  # those above a module are executed before it
    pending = [script, *(path for parent in packages[:-1] if files.is_file(path := folder / parent / INIT))]
    queued = set(pending)
    try:
        while pending:
            file = pending.pop()
            for package, name, members in imports_in(file, folder):
                top, *_ = name.split(".")
                if package is None and not files.has_module(folder, top):
                    if not is_included(top) and not is_available(top):
                        imports.setdefault(top, str(file.relative_to(folder)))
                    continue
                paths = module_files(package or folder, name, members)
                new_paths = [path for path in paths if path not in queued and files.is_file(path)]
                pending += new_paths
                queued.update(new_paths)
    except UnknownImportsError:
        return {}
    return imports


def is_included(name: str) -> bool:
    """Return whether Python or orch has this module."""
    return name in sys.stdlib_module_names or name in INCLUDED_MODULES


def module_files(folder: Path, name: str, members: Sequence[str]) -> Iterator[Path]:
    """Yield the files that may be executed when a module and its members are imported from a folder."""
    path = folder
    for part in filter(None, name.split(".")):
        path /= part
        yield from (path.with_suffix(".py"), path / INIT)
    for member in members:
        yield from ((path / member).with_suffix(".py"), path / member / INIT)


def imports_in(file: Path, folder: Path) -> Iterator[tuple[Path | None, str, tuple[str, ...]]]:
    """Yield the imports of a file that always happen: the folder of a relative one, the module, its imported members.

    Relative imports that lead out of the folder of all modules are left out.

    Raises:
        UnknownImportsError: if the file changes where modules are found.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError):  # the ranks report it
        return
    if changes_imports(tree):
        raise UnknownImportsError
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            yield from ((None, alias.name, ()) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            packages = [None, *(folder / package for package in file.relative_to(folder).parents)]
            if statement.level < len(packages):
                yield packages[statement.level], statement.module or "", tuple(alias.name for alias in statement.names)


def changes_imports(tree: ast.Module) -> bool:
    """Return whether a file mentions sys.path or the like, or starts pip."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id == "sys" and node.attr in IMPORT_SETTINGS) or node.attr == "addsitedir":
                return True
        elif isinstance(node, ast.ImportFrom) and node.module == "sys":
            if any(alias.name in IMPORT_SETTINGS for alias in node.names):
                return True
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            texts = [str(inner.value) for inner in ast.walk(node) if isinstance(inner, ast.Constant)]
            if name in STARTS_PROGRAM and any("pip" in text.split() for text in texts):
                return True
    return False
