"""Atomic checkpoints: staged, sealed with checksums, renamed, verified.

A folder is written under a temporary name (`.checkpoint-staging`), gets a manifest with the SHA-256 of each file, is
flushed to disk, and only then renamed to `checkpoint-N`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orch_node import atomic_write
from orch_node.standalone.receive_files import digest

from orch_training import RecipeError, ranks

MANIFEST = "manifest.json"
SCHEMA = 1
NAME = re.compile(r"checkpoint-(\d+)")
STAGING = ".checkpoint-staging"
DISCARDED = ".discarded"
FULL_BYTES = 1 << 20  # free on a full disk, at most
PUBLIC = 0o666  # the permissions of results, less the umask


def step_of(folder: Path) -> int:
    match = NAME.fullmatch(folder.name)
    return int(match.group(1)) if match else -1


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest first."""
    entries = folder.iterdir() if folder.is_dir() else ()  # glob() would find nothing in a folder that it cannot read
    checkpoints = [path for path in entries if path.is_dir() and step_of(path) >= 0]
    return sorted(checkpoints, key=step_of, reverse=True)


def seal(folder: Path, **facts: Any) -> None:
    """Write the manifest of a staged folder and flush everything to disk."""
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": digest(path)}
        for path in files_in(folder)
    }
    (folder / MANIFEST).write_text(json.dumps({"schema": SCHEMA, **facts, "files": files}, indent=1) + "\n")
    for path in files_in(folder):
        flush(path)
    flush(folder)


def publish(staged: Path, target: Path) -> None:
    """Rename a sealed folder; a corrupt one of that name is deleted."""
    discarded = target.with_name(f"{DISCARDED}-{target.name}")
    if target.exists():
        target.rename(discarded)
    staged.rename(target)
    flush(target.parent)
    shutil.rmtree(discarded, ignore_errors=True)


def find_problem(folder: Path) -> str | None:
    """Return why the checkpoint must not be used; None if every file matches the manifest."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if manifest["schema"] != SCHEMA or not manifest["files"]:
            return f"{MANIFEST} is damaged"
        for name, expected in manifest["files"].items():
            if not is_below(name):
                return f"{MANIFEST} names {name!r:.80}, which is outside of the checkpoint"
            if (folder / name).stat().st_size != expected["bytes"]:
                return f"{name} has {(folder / name).stat().st_size} bytes, not {expected['bytes']}"
            if digest(folder / name) != expected["sha256"]:
                return f"{name} does not match its checksum"
    except OSError as error:
        return f"{Path(str(error.filename)).name}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} is damaged"
    return None


def is_below(name: str) -> bool:
    """Return whether a name is the path of a file in a checkpoint's folder."""
    return all(part not in ("", ".", "..") for part in name.split("/"))


def facts_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / MANIFEST).read_text()))


def rotate(folder: Path, limit: int | None) -> None:
    """Keep the `limit` newest checkpoints; None, 0 and negative numbers keep all."""
    for old in list_checkpoints(folder)[limit:] if limit and limit > 0 else []:
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def written_together(name: str, folder: Path) -> Iterator[None]:
    """Write on all ranks; any error of torch, safetensors or the system on one becomes a RecipeError on all."""
    with ranks.raise_together():
        try:
            yield
        except Exception as error:
            reason = write_failure(error, folder)
            raise RecipeError(f"cannot write {name} in {folder}: {reason}. Older checkpoints are intact.") from error


def write_failure(error: BaseException, folder: Path) -> str:
    """Return why a write failed; torch's writer reports a full disk as a RuntimeError without a reason."""
    for cause in (error, error.__cause__, error.__context__):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    is_full = shutil.disk_usage(folder).free < FULL_BYTES
    return os.strerror(errno.ENOSPC) if is_full else str(error).splitlines()[0]


def write_json(path: Path, value: object) -> None:
    """Replace a JSON file atomically."""
    atomic_write.write(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n", mode=PUBLIC)


def without_nan(value: Any) -> Any:
    """Return a value with None in place of NaN, which JSON does not have."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return an object from a JSON file; None if there is no such file.

    Raises:
        RecipeError: if the file is damaged.
    """
    try:
        return {**json.loads(path.read_bytes())}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise RecipeError(f"{path} is damaged ({error}). Delete it.") from None


def files_in(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def flush(path: Path) -> None:
    with atomic_write.opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)
