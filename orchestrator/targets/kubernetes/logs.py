"""Read the lines of ranks from the logs of pods (`orch logs`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from orch_node.protocol import files
from orch_node.protocol.outcome import FAILED
from orch_node.tail import Tail

from orchestrator.errors import ExecuteError, OrchError
from orchestrator.runs import store
from orchestrator.runs.fetch import FetchListener, Source, collect
from orchestrator.runs.logs import LineParser, LogLine, copied_lines, new_lines, requested_ranks
from orchestrator.targets.kubernetes.status import nodes_of
from orchestrator.targets.kubernetes.volume import reader
from orchestrator.targets.kubernetes.watch import FOLLOW_SECONDS, JobWatch


def log_lines(watch: JobWatch, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
    """Yield the lines of a run in the order of time, or as they come, and copy them into its local folder.

    Args:
        watch: the run.
        rank: yield only its lines, or those of all ranks.
        follow: yield lines as they come, until the run has ended.

    Raises:
        RequestError: if the run has no such rank.
        ExecuteError: at the end, if a pod or the API did not respond.
    """
    folder = watch.folder
    run = store.load(folder)
    starts = watch.earlier.logs
    tails = {
        number: Tail(folder / files.rank_log(number), starts.get(number, 0)) for number in requested_ranks(run, rank)
    }
    parser = LineParser()
    errors: list[tuple[str, OrchError]] = []
    if follow and not run.has_ended:
        for _ in wait_for_lines(watch):
            yield from new_lines(tails, rank_nodes(folder), parser, last=False)
    elif not (folder / files.OUTCOME).exists():
        try:
            errors += watch.catch_up().items()
            errors += copy_from_volume(watch).items()
        except OrchError as error:
            errors.append(("the cluster", error))
    if follow and not run.has_ended:
        yield from new_lines(tails, rank_nodes(folder), parser, last=True)
        yield from parser.end()
    else:
        nodes = {number: node for number, node in rank_nodes(folder).items() if number in tails}
        yield from copied_lines(run, nodes, starts)
    for source, problem in errors[:1]:
        raise ExecuteError(f"Lines may be missing: {source}: {problem.message}", hint=problem.hint)
    if rank is None and not any(tail.path.exists() for tail in tails.values()):
        check_has_lines(store.load(folder))


def wait_for_lines(watch: JobWatch) -> Iterator[object]:
    """Yield whenever there may be new lines, until the run has ended.

    If another thread of this process watches the run, that thread copies the lines.
    """
    if not watch.watched:
        yield from watch.events()
    while watch.watched:
        yield None
        time.sleep(FOLLOW_SECONDS)


def copy_from_volume(watch: JobWatch) -> dict[str, OrchError]:
    """Copy logs from the volume if the run has ended and some of its pods are gone.

    Returns:
        the error, by its source, if the volume cannot be read.
    """
    ended = watch.poll_job()
    if ended is None or not watch.acquire():
        return {}
    nodes = {pod.node for pod in watch.follower.pods.values()}
    missing = [host.node for host in watch.record.nodes if host.node not in nodes]
    try:
        if missing:
            remote, local = f"{watch.record.run_dir}/{files.RANKS}", watch.folder.absolute() / files.RANKS
            with reader(watch.cluster, watch.record) as pod:
                source = Source(name="the volume", remote=pod)
                collect([source], [remote], local, patterns=("rank-*",), listener=FetchListener())
    except OrchError as error:
        return {"the volume": error}
    watch.write_outcome(ended)
    return {}


def check_has_lines(run: store.Run) -> None:
    """Raise ExecuteError if a run has failed without any line."""
    if run.outcome is not None and run.outcome.state == FAILED:
        raise ExecuteError(
            f"{run.id} has failed, and its ranks have printed nothing: {run.outcome.problem or ''}",
            hint="`orch runs show` shows its events.",
        )


def rank_nodes(folder: Path) -> dict[int, str]:
    """Return the pod of each rank, as reported or else as planned."""
    run = store.load(folder)
    planned = {rank.rank: rank.node for rank in run.record.layout}
    return planned | nodes_of(run.events())
