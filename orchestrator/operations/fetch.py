"""Copy the output of a run to this machine."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from pathlib import Path, PurePosixPath

from orch_node.protocol.record import RunRecord

from orchestrator.errors import RequestError
from orchestrator.planning.run_files import project_copy, working_directory
from orchestrator.runs import store
from orchestrator.runs.fetch import Collected as Collected
from orchestrator.runs.fetch import FetchListener as FetchListener
from orchestrator.targets.interface import FetchRequest as FetchRequest
from orchestrator.targets.interface import RunHandle


def fetch(handle: RunHandle, request: FetchRequest, listener: FetchListener, *, code: bool = False) -> Collected:
    """Copy files of a run to this machine.

    Args:
        handle: the run.
        request: the files. Without a `source`, the run's output folder, or what it has written in its copy of the
            project. A relative `source` is one in that folder, or else in the folder in which the script has started.
        listener: receives the progress.
        code: copy the run's project as it was sent instead.

    Raises:
        RequestError: if the output folder or the project is unknown, or no file matches.
        ExecuteError: if the copy fails.
    """
    collected = handle.fetch(with_source(handle, request, code=code), listener)
    if request.patterns and not collected.files and not collected.skipped:
        raise RequestError(
            f"No file in {collected.source} matches {' or '.join(request.patterns)}.",
            hint="To fetch all files, omit --only.",
        )
    return collected


def with_source(handle: RunHandle, request: FetchRequest, *, code: bool) -> FetchRequest:
    """Return the request with the project of a run, or with the folders that may be meant.

    Raises:
        RequestError: if no project was sent or only a part of it is requested, or the output folder is unknown.
    """
    record, origin = handle.record, store.load(handle.folder).origin
    project, output = origin.project, find_output(handle)
    if code and (request.source or request.patterns):
        raise RequestError("--code brings the whole project as it was sent.", hint="Leave --from and --only out.")
    if code and project is None:
        raise RequestError(
            f"No project is recorded here for run {record.run_id}.",
            hint="Only the machine that started a run has the record. Recipes, runs in your own folder and runs with "
            "--project none send no project.",
        )
    if code:
        return replace(request, project=project)
    if request.source:
        bases = filter(None, (output, working_directory(project, record.run_dir)))
        user_path = str(Path(request.source).absolute()) if is_local(record) else request.source
        paths = [*(str(PurePosixPath(base, request.source)) for base in bases), user_path]
        return replace(request, folders=tuple(dict.fromkeys(paths)))
    if output is None and is_local(record):
        raise RequestError(
            f"{record.recipe} ran on this machine in {origin.directory}: its files are there.",
            hint="Copy one of its folders with --from FOLDER.",
        )
    if output is None:
        raise RequestError(
            f"The output folder of {record.recipe} is unknown, because it is your own script.",
            hint="Name the folder on the node: --from /path/to/output.",
        )
    is_copy = output == project_copy(record.run_dir)
    return replace(request, folders=(output,), unchanged=project.files if project and is_copy else None)


def is_local(record: RunRecord) -> bool:
    """Return whether the output of a run is on this machine."""
    return not record.node0.via and not record.location


def find_output(handle: RunHandle) -> str | None:
    """Return the last --output_dir among the script's arguments, the recipe's folder, or the copy of the project."""
    record, folder = handle.record, handle.record.output_dir
    origin = store.load(handle.folder).origin
    arguments = origin.script_args
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        option, is_joined, value = argument.partition("=")
        if option in ("--output_dir", "--output-dir"):
            folder = value if is_joined else following
    if origin.project:
        base = working_directory(origin.project, record.run_dir)
        return str(PurePosixPath(base, folder)) if folder else project_copy(record.run_dir)
    return str(Path(folder).absolute()) if folder and is_local(record) else folder
