"""This rank and its peers. Every function also works in a single process without a group."""

from __future__ import annotations

import gc
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from orch_training.errors import RecipeError


def grouped() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    return dist.get_rank() if grouped() else int(os.environ.get("RANK", "0"))


def world_size() -> int:
    return dist.get_world_size() if grouped() else int(os.environ.get("WORLD_SIZE", "1"))


def planned() -> int:
    """How many ranks the run was planned with; after a lost node there may be fewer."""
    return int(os.environ.get("ORCH_PLANNED_WORLD_SIZE") or world_size())


def is_main() -> bool:
    return rank() == 0


def note(message: str) -> None:
    """A decision, told once."""
    if is_main():
        print(f"note: {message}", flush=True)


def join() -> None:
    """Join the ranks that a launcher has started, unless they are joined already."""
    if not dist.is_initialized() and world_size() > 1:
        dist.init_process_group("gloo")


def total(value: float) -> float:
    """The sum over all ranks."""
    if not grouped():
        return value
    tensor = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(tensor)
    return float(tensor)


def bytes_from(source: int, content: bytes) -> bytes:
    """What rank `source` holds; the other ranks' own content does not count."""
    if not grouped():
        return content
    sizes = gather(len(content))
    held = torch.frombuffer(bytearray(content or b" "), dtype=torch.uint8)
    tensor = held if rank() == source else torch.empty(max(1, sizes[source]), dtype=torch.uint8)
    dist.broadcast(tensor, src=source)
    return tensor.numpy().tobytes()[: sizes[source]]


def gather(value: Any) -> list[Any]:
    """The value of every rank, on every rank."""
    if not grouped():
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def from_main(value: Any) -> Any:
    """The value of rank 0."""
    return value_of(0, value)


def value_of(source: int, value: Any) -> Any:
    """The value of rank `source`."""
    if not grouped():
        return value
    values = [value]
    dist.broadcast_object_list(values, src=source)
    return values[0]


@contextmanager
def together() -> Iterator[None]:
    """Run a block on all ranks: if it fails on one, all raise, and nobody waits for the missing."""
    problem: RecipeError | None = None
    try:
        yield
    except RecipeError as error:
        problem = error
    problems = gather((problem and str(problem), problem and problem.code, socket.gethostname()))
    if any(text for text, _, _ in problems):
        raise combined(problems)


def combined(problems: list[tuple[str | None, int | None, str]]) -> RecipeError:
    """One error for all ranks; it names the ranks unless all have the same problem."""
    failed = [(index, *problem) for index, problem in enumerate(problems) if problem[0]]
    first, text, code, host = failed[0]
    if len(failed) == len(problems) and len({entry[1] for entry in failed}) == 1:
        return RecipeError(str(text), code=code or 1, shared=True)
    others = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return RecipeError(f"rank {first} on {host}{others}: {text}", code=code or 1, shared=True)


def owner_of(folder: Path) -> int:
    """The lowest rank that shares this folder: the one to write what belongs there once.

    Nodes may or may not share a file system, so every rank leaves a mark and looks for the others'.
    """
    token = from_main(uuid.uuid4().hex)
    mark = folder / f".rank-{rank()}-{token}"
    with together():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            mark.touch()
        except OSError as error:
            raise RecipeError(f"cannot write to {folder}: {error.strerror}.") from error
    peers = range(world_size())
    owner = next(peer for peer in peers if (folder / f".rank-{peer}-{token}").exists())
    gather(None)  # nobody removes its mark before all have looked
    mark.unlink()
    return owner


def leave() -> None:
    """Take down a group that this script made.

    The model's DDP wrapper must be gone before: gloo sometimes aborts at exit otherwise.
    """
    gc.collect()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
