"""Remove what no run has used for a long time from the store on the host with the batch system's programs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from orch_node.protocol import values
from orch_node.protocol.cleanup import Cleaned
from orch_node.protocol.record import RunRecord
from orch_node.protocol.values import ProtocolError

from orchestrator.runs.cleanup import NodeCleanup
from orchestrator.targets.batch.location import store_of
from orchestrator.targets.batch.login import host_at

CLEAN_SECONDS = 120.0  # A shared file system can be slow.


def clean_stores(
    login: str, records: Iterable[RunRecord], living: Iterable[str], *, dry_run: bool
) -> Iterator[NodeCleanup]:
    """Yield the result for each store that has unused folders, or that could not be searched.

    Args:
        login: the host; '' for this machine.
        records: the runs of the host.
        living: the ids of runs that may not have ended.
        dry_run: only report what is unused.
    """
    options = (*["--dry-run"] * dry_run, "--except", *living)
    newest = {store_of(record.run_dir): record for record in sorted(records, key=lambda record: record.created)}
    with contextlib.closing(host_at(login)) as host:
        for store, record in newest.items():
            if host.capture(("test", "-d", store), seconds=CLEAN_SECONDS).code != 0:
                continue
            command = (record.python, f"{record.train}/node.py", "cleanup", "store", store, *options)
            result = host.capture(command, seconds=CLEAN_SECONDS)
            report, problem = Cleaned(), result.err.strip()[-300:] or f"exit code {result.code}"
            try:
                if result.code == 0:
                    report = values.read_known(Cleaned, values.loads(result.out, "its response"), "its response")
                    problem = ""
            except ProtocolError as error:
                problem = str(error)
            if report.unused or problem:
                yield NodeCleanup(
                    node=login or "this machine",
                    state="left" if problem or dry_run else "clean",
                    ended=(),
                    left=tuple(f"{path}: no run uses it" for path in report.unused) if dry_run else (),
                    segments=(),
                    problem=problem and f"{store}: {problem}",
                    unused=() if dry_run else report.unused,
                )
