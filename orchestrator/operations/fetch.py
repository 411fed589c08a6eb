"""`orch fetch`: what a run has written, brought to this machine."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.errors import RequestError
from orchestrator.runs.fetch import Collected, FetchListener
from orchestrator.runs.state_files import write_json
from orchestrator.targets.interface import RunHandle, Wanted

FETCHED = "fetched.json"


def fetch(handle: RunHandle, wanted: Wanted, listener: FetchListener) -> Collected:
    """Without a `source` the run's output is meant.

    Raises RequestError for what there cannot be, ExecuteError for what fails.
    """
    wanted = replace(wanted, source=wanted.source or output_of(handle))
    found = handle.fetch(wanted, listener)
    if wanted.only and not found.files and not found.left_out:
        raise RequestError(
            f"Nothing in {wanted.source} matches {' or '.join(wanted.only)}.",
            hint="Without --only all files are fetched.",
        )
    files = [{"path": entry.path, "size": entry.size, "sha256": entry.sha256} for entry in found.files]
    value = {"schema": 1, "from": wanted.source, "folder": str(found.folder), "files": files}
    write_json(handle.folder / FETCHED, value)
    return found


def output_of(handle: RunHandle) -> str:
    """Raises RequestError."""
    if handle.record.output_dir is None:
        raise RequestError(
            f"{handle.record.recipe} is a script of its own: where it writes, only it knows.",
            hint="Name the folder on the node: --from /path/of/its/output.",
        )
    return handle.record.output_dir
