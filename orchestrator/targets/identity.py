"""Check the records of runs that others have sent, in the same way for every target."""

from __future__ import annotations

from orch_node.protocol import files
from orch_node.protocol.record import RunRecord

from orchestrator.errors import RequestError


class UntrustedRecordError(RequestError):
    """A run record that is listed, but cannot be used, because a value in it cannot be true."""


def check_output_dir(record: RunRecord, runs: str) -> None:
    """Raise UntrustedRecordError if a run writes outside of the folder of runs.

    A run writes to its own folder, or to that of an earlier run that it has resumed.
    """
    path = record.output_dir
    if path is None:
        return
    run_id = path.removeprefix(f"{runs}/").removesuffix("/output")
    if not files.is_run_id(run_id) or path != f"{runs}/{run_id}/output":
        raise UntrustedRecordError(
            f"The record of {record.run_id} names the output folder {path!r:.100}, which is outside of {runs}.",
            hint="Nothing was changed. Check who can write to the runs' records.",
        )
