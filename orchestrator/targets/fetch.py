"""Copy files of a run to this machine, from its folder on one of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from orch_node import disk
from orch_node.content_store import all_files, hash_of
from orch_node.protocol.node_names import fold
from orch_node.protocol.record import RunNode, RunRecord
from orch_node.standalone.send_files import FILE

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.model.project import Project
from orchestrator.runs.fetch import Collected, Entry, FetchListener, NoFolderError, Source, collect
from orchestrator.targets.connections.local import Local
from orchestrator.targets.interface import FetchRequest

CODE = "code"  # the default destination of a project, in the run's folder
NOT_AS_SENT = "To see what the run has in its copy, which it may have changed: --from {copy}."


def requested_node(record: RunRecord, name: str | None) -> RunNode:
    """Return the named node of a run, or node0; raise RequestError if the run does not have it."""
    if name is None:
        return record.nodes[0]
    nodes = {node.node: node for node in record.all_nodes}
    if name not in nodes:
        raise RequestError(f"Run {record.run_id} has no node '{name}'.", hint=f"It has {fold(nodes)}.")
    return nodes[name]


def fetch_files(sources: Sequence[Source], folder: Path, request: FetchRequest, listener: FetchListener) -> Collected:
    """Copy the requested files of nodes to this machine.

    Args:
        sources: the nodes that have the files.
        folder: the run's folder on this machine.
        request: the files. The default destination of local files is the folder that they are in.
        listener: receives the progress.

    Raises:
        ExecuteError: if the files cannot be read or written.
    """
    default = folder.absolute() / (f"output-{request.node}" if request.node else "output")
    if isinstance(sources[0].remote, Local):
        default = next(filter(Path.is_dir, map(Path, request.folders)), default)
    target, patterns = request.destination or default, request.patterns
    return collect(sources, request.folders, target, patterns=patterns, listener=listener, unchanged=request.unchanged)


def fetch_project(
    source: Source, store: str, copy: str, folder: Path, request: FetchRequest, listener: FetchListener
) -> Collected:
    """Copy a project to this machine as it was sent, and verify its hash.

    Args:
        source: the host that has received it.
        store: the folder of what the host has received.
        copy: the run's copy of the project on the host.
        folder: the run's folder on this machine.
        request: the project and the destination.
        listener: receives the progress.

    Raises:
        RequestError: if the destination has other content.
        ExecuteError: if the host does not have the project any more, or has changed it, or it cannot be written.
    """
    project, target = request.project, request.destination or folder.absolute() / CODE
    assert project is not None
    is_new = not target.exists() or (target.is_dir() and not any(target.iterdir()))
    if not is_new and not has_project(target, project):
        raise RequestError(f"{target} has other content.", hint="--to FOLDER names an empty or a new folder.")
    if is_new:
        path, hint = f"{store}/{project.digest}", NOT_AS_SENT.format(copy=copy)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent, ignore_cleanup_errors=True) as new:
                staging = Path(new)
                collect([source], [path], staging, listener=listener, expected=project.files)
                if hash_of(staging) != project.digest:
                    raise ExecuteError(f"{path} is not as it was sent; somebody has changed it.", hint=hint)
                staging.replace(target)
        except NoFolderError:
            raise ExecuteError.about("missing-project-copy", path=path, advice=hint) from None
        except OSError as error:
            raise ExecuteError(f"{disk.describe_error(target, error)}.", hint="--to names another folder.") from None
    files = [
        Entry(path=name, kind=FILE, size=(target / name).lstat().st_size, sha256=sha256)
        for name, sha256 in project.files.items()
    ]
    return Collected(folder=target, source=store, files=files, downloaded=[*project.files] if is_new else [])


def has_project(folder: Path, project: Project) -> bool:
    """Return whether a folder has exactly the files of a project; stop reading at the first other file."""
    is_subset = all(name in project.files for name in all_files(folder))
    return folder.is_dir() and is_subset and hash_of(folder) == project.digest
