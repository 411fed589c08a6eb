"""Describe this rank and its peers. Every function also works in a single process without a group."""

from __future__ import annotations

import functools
import json
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from orch_node import preemption
from orch_node.events import send
from orch_node.protocol.events import Decided

from orch_training import ArgumentError, RecipeError


def has_group() -> bool:
    return preemption.has_several_ranks(torch)


def rank() -> int:
    return dist.get_rank() if has_group() else int(os.environ.get("RANK", "0"))


def world_size() -> int:
    return dist.get_world_size() if has_group() else int(os.environ.get("WORLD_SIZE", "1"))


def planned_world_size() -> int:
    """Return the number of ranks of the plan; after a lost node there may be fewer."""
    return int(os.environ.get("ORCH_PLANNED_WORLD_SIZE") or world_size())


def is_main() -> bool:
    return rank() == 0


def note(message: str) -> None:
    """Print a note once, from rank 0."""
    if is_main():
        print(f"note: {message}", flush=True)


def report_decision(text: str) -> None:
    """Print and report a decision once, from rank 0."""
    note(f"{text}.")
    if is_main():
        send(Decided(text=text))


def join() -> None:
    """Join the ranks that a launcher started, unless they are already joined."""
    if not dist.is_initialized() and world_size() > 1:
        dist.init_process_group("gloo")


def gather(value: Any) -> list[Any]:
    """Return the value of every rank, on every rank: what JSON can express; tuples become lists.

    torch's own collectives of objects send pickles, which can run code of whoever reaches the ranks' ports.
    """
    if not has_group():
        return [value]
    message = as_tensor(json.dumps(value).encode())
    sizes = [torch.zeros(1, dtype=torch.int64, device=message.device) for _ in range(world_size())]
    dist.all_gather(sizes, torch.tensor([len(message)], device=message.device))
    padded = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8, device=message.device)
    padded[: len(message)] = message
    received = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(received, padded)
    return [json.loads(as_bytes(part[: int(size)])) for part, size in zip(received, sizes, strict=True)]


def from_main(value: Any) -> Any:
    """Return the value of rank 0, as gather() does."""
    return gather(value)[0]


def broadcast_bytes(source: int, content: bytes) -> bytes:
    """Return the bytes of rank `source`."""
    if not has_group():
        return content
    size = gather(len(content))[source]
    message = as_tensor(content if rank() == source else bytes(size))
    dist.broadcast(message, src=source)
    return as_bytes(message)


def as_tensor(message: bytes) -> torch.Tensor:
    """Return bytes as a tensor on the device that the backend sends from."""
    tensor = torch.frombuffer(bytearray(message), dtype=torch.uint8) if message else torch.empty(0, dtype=torch.uint8)
    return tensor.to(preemption.group_device(torch))


def as_bytes(message: torch.Tensor) -> bytes:
    return message.cpu().numpy().tobytes()


@contextmanager
def raise_together() -> Iterator[None]:
    """Run a block on all ranks; if it fails on one, all raise, so that no rank waits for the failed one."""
    problem: Exception | None = None
    try:
        yield
    except (RecipeError, OSError) as error:
        problem = error
    code = getattr(problem, "code", RecipeError.code)
    problems = gather(problem and (str(problem), code, f"rank {rank()} on {socket.gethostname()}"))
    failed = [entry for entry in problems if entry]
    if failed:
        text, code, origin = failed[0]
        is_same = len(failed) == len(problems) and len({text for text, _, _ in failed}) == 1
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        error_class = ArgumentError if code == ArgumentError.code else RecipeError
        raise error_class(text if is_same else f"{origin}{more}: {text}")


@functools.cache
def owns(folder: Path) -> bool:
    """Return whether this is the lowest rank that shares a folder: it writes the files that belong there once.

    Nodes may or may not share a file system, so every rank creates a file and looks for those of the others. All ranks
    make the first call for a folder together.
    """
    token = from_main(uuid.uuid4().hex)
    mark = folder / f".rank-{rank()}-{token}"
    with raise_together():
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
    is_lowest = not any((folder / f".rank-{peer}-{token}").exists() for peer in range(rank()))
    gather(None)  # all ranks have looked before any removes its file
    mark.unlink()
    return is_lowest
