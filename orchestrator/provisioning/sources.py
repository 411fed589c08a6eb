"""Models and data sets for the nodes: folders of this machine, and what is downloaded once from a hub or a URL."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
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
from orchestrator.load.projects import GIT_IGNORE, IGNORE, ignore_rules, is_ignored
from orchestrator.model.printable import one_line
from orchestrator.model.provision_report import Synced
from orchestrator.provisioning import urls
from orchestrator.provisioning.urls import describe_error

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
        source = find_source(kind, text, path, note)
        if source.synced.path in sources:
            raise RequestError.about("equal-sources", kind=kind, text=text, path=source.synced.path)
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
        raise RequestError.about("missing-source", kind=kind, text=text)
    return None


def find_source(kind: str, text: str, path: Path | None, note: Callable[[str], None]) -> Source:
    """Return a file or folder of this machine, or what a hub or a server has, after a download if needed.

    Args:
        kind: `model` or `data`.
        text: the value of the option.
        path: the file, or the folder, of which the files count that no .gitignore in it excludes; None to download.
        note: receives lines about what takes long.

    Raises:
        OrchError: if a file cannot be read or has a name that is not UTF-8, or there is none.
    """
    if path is None and not urls.is_url(text):
        return download_snapshot(kind, text, note)
    if path is None:
        path, source = urls.download(kind, text, note), urls.without_secrets(text)
        names = [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]
    else:
        source, names = str(path), list(folder_files(path)) if path.is_dir() else []
        if path.is_dir() and not names:
            raise RequestError.about("empty-source", kind=kind, path=path)
    try:
        for file in [path / name for name in names] or [path]:
            str(file).encode()
        hashes = {name: sha256(path / name) for name in sorted(names)}
    except UnicodeEncodeError as error:  # Ansible cannot send it
        raise RequestError.about("name-of-source", name=one_line(error.object)) from None
    except OSError as error:
        raise ExecuteError.about("unreadable-source", error=error) from None
    return make_source(path, hashes, kind=kind, name=source, path=f"{FOLDERS[kind]}/{path.name}")


def make_source(
    folder: Path, hashes: Mapping[str, str], references: Mapping[str, Path] | None = None, **fields: str
) -> Source:
    """Return the files with these hashes in a folder, or a single file; `fields`: of the report."""
    sizes = [path.stat().st_size for path in ([folder / name for name in hashes] or [folder])]
    synced = Synced(files=len(sizes), size=sum(sizes), **fields)
    return Source(synced=synced, folder=folder, hashes=hashes, references=references or {})


def folder_files(top: Path) -> Iterator[str]:
    """Yield the files below a folder that no .gitignore or .orchignore in it excludes, and no pattern of the role sync.

    Links are followed, except to a folder that contains them, also through other links. A .gitignore above the folder
    does not count: whoever names a folder wants its files, and many repositories ignore their data.
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

        folders[:] = [name for name in folders if is_sent(name, "/") and not leads_back(Path(parent, name))]
        for name in files:
            path = Path(parent, name)
            if path.is_file() and is_sent(name):
                yield str(path.relative_to(top))


def leads_back(folder: Path) -> bool:
    """Return whether a folder is a link to one that contains it, or through which a link led to it."""
    parent = folder.parent.resolve()
    return folder.is_symlink() and any(map(folder.samefile, (parent, *parent.parents, *folder.parents)))


HUB = "hub"  # on the nodes, in orch's folder: a cache of the hub's client
TYPES = {"model": "model", "data": "dataset"}
SHA1, SHA256 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")


def download_snapshot(kind: str, text: str, note: Callable[[str], None]) -> Source:
    """Return a snapshot of a model or data set; files that the cache has are not downloaded again.

    Args:
        kind: `model` or `data`.
        text: NAME or NAME@REVISION.
        note: receives lines about what takes long.

    Raises:
        OrchError: if the hub does not have it, or the download fails.
    """
    name, _, revision = text.partition("@")
    arguments = {"repo_type": TYPES[kind], "revision": revision or "main"}
    with urls.explained_errors(f"--{kind} {text}", "hub-download", "huggingface-hub>=1"):
        import huggingface_hub
        from huggingface_hub import errors
        from huggingface_hub.utils import disable_progress_bars

        if not sys.stderr.isatty():
            disable_progress_bars()
        try:
            huggingface_hub.HfApi().repo_info(name, **arguments)
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
            raise
        except (errors.HTTPError, OSError) as error:
            folder = Path(huggingface_hub.snapshot_download(name, **arguments, local_files_only=True))
            note(f"{text}: the hub does not respond ({describe_error(error)}); taking what was downloaded before")
        else:
            note(f"{text}: downloading the files that this machine's cache lacks")
            folder = Path(huggingface_hub.snapshot_download(name, **arguments))
    return snapshot_source(kind, folder, text, revision or "main")


def snapshot_source(kind: str, folder: Path, name: str, revision: str) -> Source:
    """Return a snapshot of the cache whose files have the content that the hub announced.

    Args:
        kind: `model` or `data`.
        folder: the folder with the files.
        name: the name on the hub, with the revision if one was requested.
        revision: the revision; on the nodes, files lead the hub's client from it to the commit.

    Raises:
        OrchError: if the snapshot has no files, or a file is damaged.
    """
    storage, commit = folder.parents[1], folder.name
    if not SHA1.fullmatch(commit):
        raise ExecuteError(f"{name}: the hub names no commit: {one_line(commit)!r}.", hint="Check HF_ENDPOINT.")
    hashes = {str(path.relative_to(folder)): checked_hash(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    if not hashes:
        raise RequestError(f"{name} has no files on the hub.", hint="Check the name.")
    names = [path for path in (f"refs/{revision}", f"trees/{commit}.json") if (storage / path).is_file()]
    references = {f"{HUB}/{storage.name}/{path}": storage / path for path in names}
    path = f"{HUB}/{storage.name}/snapshots/{commit}"
    return make_source(folder, hashes, references, kind=kind, name=name, revision=commit, path=path)


def checked_hash(path: Path) -> str:
    """Return the SHA-256 of a file, after a check of its content.

    The cache names the content of a file by what the hub calls its ETag: the SHA-256 of a large file, and git's hash of
    another one.

    Raises:
        ExecuteError: if the content is another one.
    """
    content = path.resolve()
    digest, etag = sha256(content), content.name
    is_git_hash = SHA1.fullmatch(etag) is not None
    if (is_git_hash or SHA256.fullmatch(etag)) and etag != (git_hash(content) if is_git_hash else digest):
        raise ExecuteError.about("damaged-snapshot", path=path, content=content)
    return digest


def git_hash(path: Path) -> str:
    """Return git's hash of a file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
