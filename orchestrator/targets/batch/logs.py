"""Read the log lines of a job's ranks, which are on the shared file system."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from orch_node.protocol import files
from orch_node.tail import Tail

from orchestrator.runs.logs import LineParser, LogLine, copied_lines, requested_ranks
from orchestrator.runs.state_files import outcome_in
from orchestrator.runs.store import Run
from orchestrator.targets.batch.watch import JobWatch

POLL_SECONDS = 0.2


def log_lines(
    watch: JobWatch, run: Run, *, rank: int | None, follow: bool, starts: Mapping[int, int]
) -> Iterator[LogLine]:
    """Yield the log lines in the order of time, or as they are written while the run is followed.

    Args:
        watch: the watch over the run's job.
        run: the run.
        rank: the only rank to read; None for all of them.
        follow: yield lines as they are written, until the run has ended.
        starts: the bytes of each rank's log to skip.

    Raises:
        RequestError: if the run does not have this rank.
    """
    nodes = requested_ranks(run, rank)
    if not follow or outcome_in(run.folder) is not None:
        watch.run_folder.copy_logs(nodes)
        yield from copied_lines(run, nodes, starts)
        return
    tails = {number: Tail(run.folder / files.rank_log(number), starts.get(number, 0)) for number in nodes}
    parser = LineParser()
    running = True
    while running:
        watch.refresh()
        running = outcome_in(run.folder) is None and not watch.state().ended
        watch.run_folder.copy_logs(nodes)
        yield from lines(tails, nodes, parser, last=False)
        time.sleep(POLL_SECONDS)
    watch.run_folder.copy_logs(nodes)
    yield from lines(tails, nodes, parser, last=True)
    yield from parser.end()


def lines(tails: dict[int, Tail], nodes: dict[int, str], parser: LineParser, *, last: bool) -> Iterator[LogLine]:
    """Yield each rank's new lines, then its unfinished line, which a later call may replace."""
    for rank, tail in tails.items():
        if not tail.path.exists():
            continue
        while complete := tail.lines(last=False):
            yield from (line for text in complete for line in parser.parse(rank, nodes[rank], text))
        if last:
            last_lines = tail.lines(last=True)
            yield from (line for text in last_lines for line in parser.parse(rank, nodes[rank], text))
        elif tail.state:
            yield from parser.parse(rank, nodes[rank], tail.state, finished=False)
