"""Checkpoints on nodes that share no disk: every node has a whole one, also a node that is new."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from orch_training import checkpoint, ranks
from orch_training.errors import RecipeError

CHUNK = 64 << 20  # bytes that every rank holds at a time


def random_states(folder: Path, name: str, *, owner: bool) -> None:
    """Put all ranks' random states into the staged folder, of which each rank has written `name`.

    Any node's copy then restarts any rank exactly, also after another node is lost.
    """
    states = ranks.gather((name, (folder / name).read_bytes()))
    for other, content in states if owner else ():
        if not (folder / other).exists():
            (folder / other).write_bytes(content)


def share(folder: Path, source: int) -> None:
    """Bring the checkpoint of rank `source` to the nodes whose own is missing or damaged."""
    writes = ranks.owner_of(folder.parent) == ranks.rank() and lacks(folder)
    staging = folder.parent / checkpoint.STAGING / folder.name
    with ranks.together(), checkpoint.telling_of_failure(folder.name, folder.parent):
        if writes:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
    for name, size in ranks.value_of(source, files(folder)):
        if not checkpoint.is_below(name):
            raise RecipeError(f"{folder.name} of rank {source} names {name!r:.80} as its file.")
        with ranks.together(), checkpoint.telling_of_failure(folder.name, folder.parent):
            receive(folder / name, size, source=source, into=staging / name if writes else None)
    with ranks.together(), checkpoint.telling_of_failure(folder.name, folder.parent):
        if writes:
            checkpoint.publish(staging, folder)
            shutil.rmtree(staging.parent, ignore_errors=True)


def lacks(folder: Path) -> bool:
    return checkpoint.problem_with(folder) is not None


def files(folder: Path) -> list[tuple[str, int]]:
    """(name, bytes) of a whole checkpoint's files; none where it is not whole."""
    if lacks(folder):
        return []
    manifest = json.loads((folder / checkpoint.MANIFEST).read_text())
    names = [*manifest["files"], checkpoint.MANIFEST]
    return [(name, (folder / name).stat().st_size) for name in names]


def receive(path: Path, size: int, *, source: int, into: Path | None) -> None:
    """One file of rank `source`, chunk by chunk; every rank takes part. A rank that cannot write
    goes on to the end, so that nobody waits for it."""
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
        yield ranks.bytes_from(source, content)
