"""`orch logs` of a job: the ranks' logs lie on the shared file system."""

from __future__ import annotations

import time
from collections.abc import Iterator

from orch_node.protocol import files
from orch_node.tail import Tail

from orchestrator.runs.logs import LogLine, asked_for
from orchestrator.runs.state_files import outcome_in
from orchestrator.runs.store import Run
from orchestrator.targets.slurm.watch import JobWatch

POLL_SECONDS = 0.2


def log_lines(watch: JobWatch, run: Run, *, rank: int | None, follow: bool) -> Iterator[LogLine]:
    """Lines rank by rank; with `follow` as they are written, until the run has ended. Raises
    RequestError for a rank that the run does not have."""
    nodes = asked_for(run, rank)
    tails = {one: Tail(run.folder / files.rank_log(one), 0) for one in nodes}
    lives = follow
    while lives:
        watch.refresh()
        lives = outcome_in(run.folder) is None and not watch.state().ended
        watch.run_folder.take_logs(nodes)
        yield from lines(tails, nodes, last=False)
        time.sleep(POLL_SECONDS)
    watch.run_folder.take_logs(nodes)
    yield from lines(tails, nodes, last=True)


def lines(tails: dict[int, Tail], nodes: dict[int, str], *, last: bool) -> Iterator[LogLine]:
    for rank, tail in tails.items():
        if not tail.path.exists():
            continue
        while found := tail.lines(last=False):
            yield from (LogLine(rank=rank, node=nodes[rank], text=text) for text in found)
        if last:
            rest = tail.lines(last=True)
            yield from (LogLine(rank=rank, node=nodes[rank], text=text) for text in rest)
        elif tail.state:
            yield LogLine(rank=rank, node=nodes[rank], text=tail.state, finished=False)
