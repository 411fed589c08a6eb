"""Checkpoints that are whole or not there: staged, sealed with checksums, renamed, verified.

A folder is written under a name that nobody reads (`.checkpoint-staging`), gets a manifest with
the SHA-256 of each file, is flushed to disk, and only then renamed to `checkpoint-N`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orch_training.errors import RecipeError

MANIFEST = "manifest.json"
SCHEMA = 1
NAME = re.compile(r"checkpoint-(\d+)")
STAGING = ".checkpoint-staging"
DISCARDED = ".discarded"
PROBE_BYTES = 1 << 20


def step_of(folder: Path) -> int:
    match = NAME.fullmatch(folder.name)
    return int(match.group(1)) if match else -1


def saved_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.is_dir() and step_of(path) >= 0]
    return sorted(found, key=step_of, reverse=True)


def remove_rubbish(folder: Path) -> list[str]:
    """Remove what a killed process left half-done; -> the names."""
    names = [path.name for path in folder.iterdir() if is_rubbish(path.name)]
    for name in names:
        shutil.rmtree(folder / name)
    return names


def is_rubbish(name: str) -> bool:
    return (name.endswith("-staging") and name.startswith(".")) or name.startswith(DISCARDED)


def seal(folder: Path, **facts: Any) -> None:
    """Write the manifest of a staged folder and flush everything to disk."""
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in files_in(folder)
    }
    manifest = {"schema": SCHEMA, **facts, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    for path in files_in(folder):
        flush(path)
    flush(folder)


def publish(staged: Path, target: Path) -> None:
    """Give a sealed folder its name. What had the name before (a corrupt one) goes."""
    discarded = target.with_name(f"{DISCARDED}-{target.name}")
    if target.exists():
        target.rename(discarded)
    staged.rename(target)
    flush(target.parent)
    shutil.rmtree(discarded, ignore_errors=True)


def problem_with(folder: Path) -> str | None:
    """Why the checkpoint must not be used; None if each file is as it was written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if manifest["schema"] != SCHEMA or not manifest["files"]:
            return f"{MANIFEST} is damaged"
        for name, expected in manifest["files"].items():
            if not is_below(name):
                return f"{MANIFEST} names {name!r:.80}, which is no file of it"
            if (folder / name).stat().st_size != expected["bytes"]:
                return f"{name} has {(folder / name).stat().st_size} bytes, not {expected['bytes']}"
            if sha256(folder / name) != expected["sha256"]:
                return f"{name} does not match its checksum"
    except OSError as error:
        return f"{Path(str(error.filename)).name}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} is damaged"
    return None


def is_below(name: str) -> bool:
    """Whether it is the path of a file in a checkpoint's folder."""
    return all(part not in ("", ".", "..") for part in name.split("/"))


def facts_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / MANIFEST).read_text()))


def rotate(folder: Path, limit: int | None) -> None:
    """Keep the `limit` newest checkpoints; None or 0 keeps all."""
    for old in saved_in(folder)[limit:] if limit else []:
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def telling_of_failure(name: str, folder: Path) -> Iterator[None]:
    """One message for whatever torch, safetensors or the system raise when a write fails."""
    try:
        yield
    except Exception as error:
        reason = write_failure(error, folder / STAGING)
        raise RecipeError(f"cannot write {name} in {folder}: {reason}. Older checkpoints are intact.") from error


def write_failure(error: BaseException, folder: Path) -> str:
    """Why a write failed, in words.

    torch's writer reports a full disk as a RuntimeError without the reason, so one MiB is written
    to learn it from the system.
    """
    for cause in (error, error.__cause__, error.__context__):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return probe(folder) or str(error).splitlines()[0]


def probe(folder: Path) -> str | None:
    mark = folder / ".probe"
    try:
        mark.write_bytes(bytes(PROBE_BYTES))
        flush(mark)
    except OSError as error:
        return error.strerror
    finally:
        mark.unlink(missing_ok=True)
    return None


def write_json(path: Path, value: object) -> None:
    """Replace a JSON file as a whole."""
    staged = path.with_name(f".{path.name}.tmp")
    staged.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    flush(staged)
    staged.replace(path)
    flush(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """An object; None where there is no such file. Raises RecipeError for a damaged one."""
    try:
        return {**json.loads(path.read_bytes())}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise RecipeError(f"{path} is damaged ({error}): remove it.") from None


def files_in(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
