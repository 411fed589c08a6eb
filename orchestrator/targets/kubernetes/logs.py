"""`orch logs` on Kubernetes: the ranks' lines out of the pods' logs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from orch_node.protocol import files
from orch_node.protocol.outcome import FAILED

from orchestrator.errors import ExecuteError, OrchError
from orchestrator.runs import store
from orchestrator.runs.fetch import FetchListener, collect
from orchestrator.runs.logs import LogLine, asked_for
from orchestrator.targets.kubernetes.outcome import nodes_of
from orchestrator.targets.kubernetes.volume import reader
from orchestrator.targets.kubernetes.watch import FOLLOW_SECONDS, KubeWatch


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
        for _ in moments(watch):
            yield from new_lines(folder, sizes, rank)
    elif not (folder / files.OUTCOME).exists():
        try:
            missed += watch.catch_up().items()
            missed += from_volume(watch).items()
        except OrchError as error:
            missed.append(("the cluster", error))
    yield from new_lines(folder, sizes, rank)
    for of, why in missed[:1]:
        raise ExecuteError(f"Lines may be missing: {of}: {why.message}", hint=why.hint)
    if not sizes and rank is None:
        check_silence(store.load(folder))


def moments(watch: KubeWatch) -> Iterator[object]:
    """Whenever there may be new lines, until the run has ended: who watches it in this process
    already brings them."""
    if not watch.watched:
        yield from watch.events()
    while watch.watched:
        yield None
        time.sleep(FOLLOW_SECONDS)


def from_volume(watch: KubeWatch) -> dict[str, OrchError]:
    """If the run has ended and pods of it are gone: the logs that they have left on the volume.

    -> why they could not be had.
    """
    ended = watch.look()
    if ended is None or not watch.hold():
        return {}
    nodes = {pod.node for pod in watch.follower.pods.values()}
    gone = [host.node for host in watch.record.nodes if host.node not in nodes]
    try:
        if gone:
            bring_ranks(watch)
    except OrchError as error:
        return {"the volume": error}
    watch.finish_with(ended)
    return {}


def bring_ranks(watch: KubeWatch) -> None:
    """Raises ExecuteError."""
    there, here = f"{watch.record.run_dir}/{files.RANKS}", watch.folder.absolute() / files.RANKS
    with reader(watch.cluster, watch.record) as pod:
        collect(pod, there, here, only=("rank-*",), listener=FetchListener())


def check_silence(run: store.Run) -> None:
    """Raises ExecuteError for a run that has failed, and of which there is no line."""
    if run.outcome is not None and run.outcome.state == FAILED:
        raise ExecuteError(
            f"{run.id} has failed, and its ranks have said nothing: {run.outcome.problem or ''}",
            hint="`orch runs show` tells what is known of it.",
        )


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
            yield LogLine(rank=of, node=nodes.get(of, "?"), text=line.decode(errors="replace"))


def number(path: Path) -> int | None:
    return files.rank_of(path.name)


def places(folder: Path) -> dict[int, str]:
    """Rank -> the pod that it said it runs in, else the planned one."""
    run = store.load(folder)
    planned = {place.rank: place.node for place in run.record.layout}
    return planned | nodes_of(run.events())
