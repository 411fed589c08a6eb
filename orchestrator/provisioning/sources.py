"""Models and data sets for the nodes: folders of this machine, and what is downloaded once from a hub or a URL."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import yaml

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.files import SHARE, sha256
from orchestrator.load.projects import GIT_IGNORE, IGNORE, ignore_rules
from orchestrator.model.provision_report import Synced
from orchestrator.provisioning import hub, urls

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

ROLE_DEFAULTS = SHARE / "playbooks" / "roles" / "sync" / "defaults" / "main.yml"
FOLDERS = {"model": "models", "data": "data"}  # on the nodes, in orch's folder
HUB_NAME = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*(?:@(?!.*\.\.)\w[\w./-]*)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model or data set on this machine, and the files that go to the nodes.

    Attributes:
        synced: what the report says about it.
        folder: the folder with its files, or the file.
        hashes: the SHA-256 of each file by its path in the folder; empty for a single file.
        references: further files by their paths on the nodes, in orch's folder.
    """

    synced: Synced
    folder: Path
    hashes: Mapping[str, str]
    references: Mapping[str, Path]


@contextmanager
def source_trees(sources: Sequence[Source]) -> Iterator[list[dict[str, str]]]:
    """Yield the trees for the module orch_tree.

    Names of files may come from a hub or a server, and Ansible expands expressions in its variables. So they are in a
    file.
    """
    with TemporaryDirectory(prefix="orch-sync-") as folder:
        trees = []
        for number, source in enumerate(sources):
            tree = {"src": str(source.folder), "dest": source.synced.path}
            if source.hashes:
                manifest = Path(folder, f"{number}.json")
                manifest.write_text(json.dumps(source.hashes))
                tree["manifest"] = str(manifest)
            trees += [tree, *({"src": str(path), "dest": dest} for dest, path in source.references.items())]
        yield trees


def find_sources(models: Sequence[str], data: Sequence[str], note: Callable[[str], None]) -> tuple[Source, ...]:
    """Return the models and data sets, downloaded as far as they are not files of this machine.

    Args:
        models: the values of --model.
        data: the values of --data.
        note: receives lines about what takes long.

    Raises:
        OrchError: if one of them does not exist or cannot be read.
    """
    requested = [*(("model", text) for text in models), *(("data", text) for text in data)]
    # What has no name or path on this machine is reported before anything is downloaded.
    paths = [local_path(kind, text) for kind, text in requested]
    sources: dict[str, Source] = {}
    for (kind, text), path in zip(requested, paths, strict=True):
        source = local_source(kind, path) if path else downloaded(kind, text, note)
        if source.synced.path in sources:
            raise RequestError(
                f"--{kind} {text}: another one is already copied to {source.synced.path} on the nodes.",
                hint="Rename one of them, or copy them one after the other.",
            )
        sources[source.synced.path] = source
    return tuple(sources.values())


def local_path(kind: str, text: str) -> Path | None:
    """Return the file or folder of this machine, or None for a URL or a name of a hub.

    Raises:
        RequestError: if it is neither of them and no such file exists.
    """
    if urls.is_url(text):
        return None
    path = Path(text).expanduser()
    if path.exists():
        return path.resolve()
    if not HUB_NAME.fullmatch(text):
        raise RequestError(
            f"--{kind} {text}: no such file or folder.", hint="The path is relative to the current folder."
        )
    return None


def downloaded(kind: str, text: str, note: Callable[[str], None]) -> Source:
    """Return what a hub or a server has, after a download if needed."""
    if urls.is_url(text):
        path = urls.download(kind, text, note)
        names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
        return path_source(kind, path, names, name=urls.without_secrets(text))
    snapshot = hub.download(kind, text, note)
    return Source(
        synced=Synced(
            kind=kind,
            name=snapshot.name,
            revision=snapshot.commit,
            path=snapshot.path,
            files=len(snapshot.hashes),
            size=total_size(snapshot.folder / name for name in snapshot.hashes),
        ),
        folder=snapshot.folder,
        hashes=snapshot.hashes,
        references=snapshot.references,
    )


def local_source(kind: str, path: Path) -> Source:
    """Return a file or folder of this machine, without the files that a .gitignore in the folder excludes.

    Raises:
        OrchError: if a file cannot be read, or there is none.
    """
    names = sorted(folder_files(path)) if path.is_dir() else []
    if path.is_dir() and not names:
        raise RequestError(
            f"--{kind} {path}: the folder has no files to copy.", hint="Name another folder, or change its .gitignore."
        )
    return path_source(kind, path, names, name=str(path))


def path_source(kind: str, path: Path, names: Sequence[str], *, name: str) -> Source:
    """Return these files of a folder, or a single file.

    Raises:
        ExecuteError: if a file cannot be read.
    """
    try:
        hashes = {name: sha256(path / name) for name in names}
    except OSError as error:
        raise ExecuteError(
            f"{error.filename} cannot be read: {error.strerror}.", hint="Make it readable, or add it to .gitignore."
        ) from None
    synced = Synced(
        kind=kind,
        name=name,
        path=f"{FOLDERS[kind]}/{path.name}",
        files=len(names) or 1,
        size=total_size([path / name for name in names] or [path]),
    )
    return Source(synced=synced, folder=path, hashes=hashes, references={})


def total_size(paths: Iterator[Path] | Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def folder_files(top: Path) -> Iterator[str]:
    """Yield the files below a folder that no .gitignore or .orchignore in it excludes, and no pattern of the role sync.

    Links are followed. A .gitignore above the folder does not count: whoever names a folder wants its files, and many
    repositories ignore their data.
    """
    patterns = yaml.safe_load(ROLE_DEFAULTS.read_text())["sync_ignored"]
    rules: dict[str, GitIgnoreSpec] = {}
    for parent, folders, files in os.walk(top, followlinks=True):
        if {GIT_IGNORE, IGNORE} & {*files}:
            rules[parent] = ignore_rules(Path(parent), GIT_IGNORE, IGNORE)

        def is_sent(name: str, suffix: str = "", parent: str = parent) -> bool:
            return not any(fnmatch(name, text) for text in patterns) and not is_ignored(
                os.path.join(parent, name) + suffix, rules
            )

        folders[:] = [name for name in folders if is_sent(name, "/") and not is_above(Path(parent, name))]
        for name in files:
            path = Path(parent, name)
            if path.is_file() and is_sent(name):
                yield str(path.relative_to(top))


def is_ignored(path: str, rules: Mapping[str, GitIgnoreSpec]) -> bool:
    """Return whether the nearest .gitignore with a pattern for a path excludes it.

    Args:
        path: the path; that of a folder ends with a slash.
        rules: the patterns of each .gitignore by its folder.
    """
    for folder in sorted(rules, key=len, reverse=True):
        if path.startswith(f"{folder}/"):
            included = rules[folder].check_file(path[len(folder) + 1 :]).include
            if included is not None:
                return included
    return False


def is_above(folder: Path) -> bool:
    """Return whether a link to a folder leads to a folder that contains it."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())
