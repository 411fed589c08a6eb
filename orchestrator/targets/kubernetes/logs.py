"""`orch logs` on Kubernetes: the ranks' lines out of the pods' logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orch_node.protocol import files

from orchestrator.errors import ExecuteError, OrchError
from orchestrator.runs import store
from orchestrator.runs.logs import LogLine, asked_for
from orchestrator.targets.kubernetes.outcome import nodes_of
from orchestrator.targets.kubernetes.watch import KubeWatch


def log_lines(watch: KubeWatch, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
    """Lines rank by rank; with `follow` as the pods give them. Kept in the run's folder, too.

    Raises RequestError for a rank that the run does not have, and at the end ExecuteError if a pod
    or the API did not answer.
    """
    folder = watch.folder
    asked_for(store.load(folder), rank)
    sizes: dict[Path, int] = {}
    missed: list[tuple[str, OrchError]] = []
    if follow:
        for _ in watch.events():
            yield from new_lines(folder, sizes, rank)
    elif not (folder / files.OUTCOME).exists():
        try:
            missed += watch.catch_up().items()
        except OrchError as error:
            missed.append(("the cluster", error))
    yield from new_lines(folder, sizes, rank)
    for of, why in missed[:1]:
        raise ExecuteError(f"Lines may be missing: {of}: {why.message}", hint=why.hint)


def new_lines(folder: Path, sizes: dict[Path, int], rank: int | None) -> Iterator[LogLine]:
    """Lines of the logs here that have not been given yet."""
    nodes = places(folder)
    paths = {number(path): path for path in folder.glob("ranks/rank-*.log")}
    for of, path in sorted((of, path) for of, path in paths.items() if of is not None):
        if rank is not None and of != rank:
            continue
        with path.open("rb") as file:
            file.seek(sizes.get(path, 0))
            *whole, _ = file.read().split(b"\n")
        sizes[path] = sizes.get(path, 0) + sum(len(line) + 1 for line in whole)
        for line in whole:
            yield LogLine(
                rank=of, node=nodes.get(of, "?"),
                text=line.decode(errors="replace"),
            )  # fmt: skip


def number(path: Path) -> int | None:
    return files.rank_of(path.name)


def places(folder: Path) -> dict[int, str]:
    """Rank -> the pod that it said it runs in, else the planned one."""
    run = store.load(folder)
    planned = {place.rank: place.node for place in run.record.layout}
    return planned | nodes_of(run.events())
