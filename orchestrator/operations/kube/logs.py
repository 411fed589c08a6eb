"""`orch logs` on Kubernetes: the ranks' lines out of the pods' logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator import runs
from orchestrator.card import Whereabouts
from orchestrator.errors import ExecuteError, OrchError
from orchestrator.operations.kube.watch import KubeWatch
from orchestrator.operations.logs import Line, asked_for


def log_lines(
    where: Whereabouts, folder: Path, *, rank: int | None, follow: bool,
    tell: Callable[[str], None],
) -> Iterator[Line]:  # fmt: skip
    """Lines rank by rank; with `follow` as the pods give them. Kept in the run's folder, too.

    Raises RequestError for a rank that the run does not have, and at the end ExecuteError if a pod
    or the API did not answer.
    """
    asked_for(runs.load(folder), rank)
    watch = KubeWatch(where, folder, tell)
    sizes: dict[Path, int] = {}
    missed: list[tuple[str, OrchError]] = []
    if follow:
        for _ in watch.events():
            yield from new_lines(folder, sizes, rank)
    elif not (folder / "outcome.json").exists():
        try:
            missed += watch.catch_up().items()
        except OrchError as error:
            missed.append(("the cluster", error))
    yield from new_lines(folder, sizes, rank)
    for of, why in missed[:1]:
        raise ExecuteError(f"Lines may be missing: {of}: {why.message}", hint=why.hint)


def new_lines(folder: Path, sizes: dict[Path, int], rank: int | None) -> Iterator[Line]:
    """Lines of the logs here that have not been given yet."""
    nodes = places(folder)
    for path in sorted(folder.glob("ranks/rank-*.log"), key=number):
        if rank is not None and number(path) != rank:
            continue
        with path.open("rb") as file:
            file.seek(sizes.get(path, 0))
            *whole, _ = file.read().split(b"\n")
        sizes[path] = sizes.get(path, 0) + sum(len(line) + 1 for line in whole)
        for line in whole:
            yield Line(
                rank=number(path), node=nodes.get(number(path), "?"),
                text=line.decode(errors="replace"),
            )  # fmt: skip


def number(path: Path) -> int:
    return int(path.name.split("-")[1].split(".")[0])


def places(folder: Path) -> dict[int, str]:
    """Rank -> the pod that it said it runs in, else the planned one."""
    run = runs.load(folder)
    planned = {place["rank"]: place["node"] for place in run.plan["layout"]}
    told = {one["rank"]: one["node"] for one in run.events() if one["event"] == "started"}
    return planned | told
