"""Downloads models and data sets from a Hugging Face hub into this user's cache of it."""

from __future__ import annotations

import errno
import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ExecuteError, OrchError, RequestError
from orchestrator.files import sha256
from orchestrator.model.printable import one_line
from orchestrator.provisioning.urls import hide_secrets

FOLDER = "hub"  # on the nodes, in orch's folder: a cache of the hub's client
TYPES = {"model": "model", "data": "dataset"}
NOUNS = {"model": "model", "data": "data set"}
SHA1, SHA256 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")
LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The files of one commit in the cache.

    Attributes:
        name: the name on the hub, with the revision if one was requested.
        commit: the commit.
        folder: the folder with the files on this machine.
        path: the folder on the nodes, in orch's folder.
        hashes: the SHA-256 of each file by its path in the folder.
        references: files that lead the hub's client from a revision to the commit, by their paths on the nodes.
    """

    name: str
    commit: str
    folder: Path
    path: str
    hashes: Mapping[str, str]
    references: Mapping[str, Path]


def download(kind: str, text: str, note: Callable[[str], None]) -> Snapshot:
    """Return a snapshot of a model or data set; files that the cache has are not downloaded again.

    Args:
        kind: `model` or `data`.
        text: NAME or NAME@REVISION.
        note: receives lines about what takes long.

    Raises:
        OrchError: if the hub does not have it, or the download fails.
    """
    try:
        import huggingface_hub
        from huggingface_hub import errors
        from huggingface_hub.utils import disable_progress_bars
    except ImportError:
        raise RequestError(
            f"--{kind} {text}: no such file or folder, and a hub needs the package huggingface_hub.",
            hint="To download from a hub: pip install 'huggingface-hub>=1'",
        ) from None
    if not sys.stderr.isatty():
        disable_progress_bars()
    name, _, revision = text.partition("@")
    arguments = {"repo_type": TYPES[kind], "revision": revision or "main"}
    try:
        try:
            huggingface_hub.HfApi().repo_info(name, **arguments)
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
            raise
        except (errors.HTTPError, OSError) as error:
            folder = Path(huggingface_hub.snapshot_download(name, **arguments, local_files_only=True))
            note(f"{text}: the hub does not respond ({reason(error)}); taking what was downloaded before")
        else:
            note(f"{text}: downloading the files that this machine's cache lacks")
            folder = Path(huggingface_hub.snapshot_download(name, **arguments))
    except (errors.HTTPError, ValueError, OSError) as error:
        raise hub_error(kind, text, error) from None
    return read_snapshot(folder, text, revision or "main")


def hub_error(kind: str, text: str, error: Exception) -> OrchError:
    """Return the error for what the hub's client has raised."""
    from huggingface_hub import constants, errors

    hub, noun = constants.ENDPOINT, NOUNS[kind]
    name, _, revision = text.partition("@")
    status = getattr(getattr(error, "response", None), "status_code", 0)
    option = f"--{kind} {text}"
    if isinstance(error, errors.GatedRepoError):
        return RequestError(
            f"{option}: {hub} gives access only to users whom its authors have admitted.",
            hint=f"Request access on {hub}/{'datasets/' if kind == 'data' else ''}{name}, and {LOGIN}.",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return RequestError(
            f"{option}: {name} has no revision {revision or 'main'}.",
            hint="Name a branch, a tag or a whole commit hash.",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return RequestError(
            f"{option}: there is no such file or folder here, and no such {noun} on {hub}, or it is private.",
            hint=f"Check the name. If it is private, {LOGIN}.",
        )
    if status in (401, 403):
        return RequestError(f"{option}: {hub} does not accept the token.", hint=f"To use another one, {LOGIN}.")
    if isinstance(error, errors.HFValidationError):
        return RequestError(f"{option}: {reason(error)}", hint="A name of a hub is NAME or OWNER/NAME.")
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return ExecuteError(
            f"{option}: no space is left in {constants.HF_HUB_CACHE}.",
            hint="Free some space, or set HF_HOME to a folder on another disk, and run the command again.",
        )
    return ExecuteError(
        f"{option}: it cannot be downloaded from {hub}: {reason(error.__cause__ or error)}",
        hint="Check the connection, HTTPS_PROXY and HF_ENDPOINT. The command continues where it was interrupted.",
    )


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class."""
    return hide_secrets(one_line((str(error).strip() or type(error).__name__).splitlines()[0]))


def read_snapshot(folder: Path, name: str, revision: str) -> Snapshot:
    """Return a snapshot of the cache whose files have the content that the hub announced.

    Raises:
        OrchError: if the snapshot has no files, or a file is damaged.
    """
    storage, commit = folder.parents[1], folder.name
    if not SHA1.fullmatch(commit):
        raise ExecuteError(f"{name}: the hub names no commit: {one_line(commit)!r}.", hint="Check HF_ENDPOINT.")
    hashes = {str(path.relative_to(folder)): checked_hash(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    if not hashes:
        raise RequestError(f"{name} has no files on the hub.", hint="Check the name.")
    references = (f"refs/{revision}", f"trees/{commit}.json")
    return Snapshot(
        name=name,
        commit=commit,
        folder=folder,
        path=f"{FOLDER}/{storage.name}/snapshots/{commit}",
        hashes=hashes,
        references={
            f"{FOLDER}/{storage.name}/{path}": storage / path for path in references if (storage / path).is_file()
        },
    )


def checked_hash(path: Path) -> str:
    """Return the SHA-256 of a file, after a check of its content.

    The cache names the content of a file by what the hub calls its ETag: the SHA-256 of a large file, and git's hash of
    another one.

    Raises:
        ExecuteError: if the content is another one.
    """
    content = path.resolve()
    digest = sha256(content)
    is_damaged = bool(SHA256.fullmatch(content.name)) and digest != content.name
    if SHA1.fullmatch(content.name):
        is_damaged = git_hash(content) != content.name
    if is_damaged:
        raise ExecuteError(
            f"{path} is damaged: its content is not what the hub announced.",
            hint=f"Delete {content} and run the command again, which downloads only that file.",
        )
    return digest


def git_hash(path: Path) -> str:
    """Return git's hash of a file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
