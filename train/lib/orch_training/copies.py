"""Copies checkpoints between nodes without a shared disk, so that every node has a complete one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from orch_training import checkpoint, ranks
from orch_training.errors import RecipeError

CHUNK = 64 << 20  # bytes that every rank holds at once


def random_states(folder: Path, name: str, *, owner: bool) -> None:
    """Add the random states of all ranks to the staged folder, into which each rank has written `name`.

    Any node's copy can then restart any rank exactly, even after another node is lost.
    """
    states = ranks.gather((name, (folder / name).read_bytes()))
    for file_name, content in states if owner else ():
        if not (folder / file_name).exists():
            (folder / file_name).write_bytes(content)


def share(folder: Path, source: int) -> None:
    """Copy the checkpoint of rank `source` to the nodes where it is missing or damaged."""
    writes = ranks.owner_of(folder.parent) == ranks.rank() and lacks(folder)
    staging = folder.parent / checkpoint.STAGING / folder.name
    with ranks.raise_together(), checkpoint.reporting_write_errors(folder.name, folder.parent):
        if writes:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
    for name, size in ranks.broadcast(source, files(folder)):
        if not checkpoint.is_below(name):
            raise RecipeError(f"{folder.name} of rank {source} names {name!r:.80} as its file.")
        with ranks.raise_together(), checkpoint.reporting_write_errors(folder.name, folder.parent):
            receive(folder / name, size, source=source, into=staging / name if writes else None)
    with ranks.raise_together(), checkpoint.reporting_write_errors(folder.name, folder.parent):
        if writes:
            checkpoint.publish(staging, folder)
            shutil.rmtree(staging.parent, ignore_errors=True)


def lacks(folder: Path) -> bool:
    return checkpoint.find_problem(folder) is not None


def files(folder: Path) -> list[tuple[str, int]]:
    """Return the names and sizes of a checkpoint's files; empty if the checkpoint is damaged."""
    if lacks(folder):
        return []
    manifest = json.loads((folder / checkpoint.MANIFEST).read_text())
    names = [*manifest["files"], checkpoint.MANIFEST]
    return [(name, (folder / name).stat().st_size) for name in names]


def receive(path: Path, size: int, *, source: int, into: Path | None) -> None:
    """Receive one file of rank `source` in chunks; every rank takes part.

    A rank that cannot write still receives all chunks, so that the others need not wait for it.
    """
    problem: OSError | None = None
    for chunk in chunks(path, size, source):
        try:
            if into is not None and problem is None:
                into.parent.mkdir(parents=True, exist_ok=True)
                with into.open("ab") as file:
                    file.write(chunk)
        except OSError as error:
            problem = error
    if problem is not None:
        raise problem


def chunks(path: Path, size: int, source: int) -> Iterator[bytes]:
    for offset in range(0, size, CHUNK):
        content = b""
        if ranks.rank() == source:
            with path.open("rb") as file:
                file.seek(offset)
                content = file.read(CHUNK)
        yield ranks.broadcast(source, content)
