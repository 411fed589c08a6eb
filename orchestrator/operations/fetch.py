"""`orch fetch`: what a run has written, brought to this machine."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from orchestrator.errors import RequestError
from orchestrator.runs import store
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
    """Return the folder that the script writes to.

    Raises:
        RequestError: if it is not known.
    """
    folder = find_output(handle)
    if folder is None:
        raise RequestError(
            f"{handle.record.recipe} is a script of its own: where it writes, only it knows.",
            hint="Name the folder on the node: --from /path/of/its/output.",
        )
    return folder


def find_output(handle: RunHandle) -> str | None:
    """Return the folder of the last --output_dir that the script got, or None without one."""
    record, folder = handle.record, handle.record.output_dir
    arguments = store.load(handle.folder).origin.script_args
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        option, is_joined, value = argument.partition("=")
        if option in ("--output_dir", "--output-dir"):
            folder = value if is_joined else following
    is_here = not record.node0.via and not record.location
    return str(Path(folder).absolute()) if folder and is_here else folder
