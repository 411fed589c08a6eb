"""Copy files of a run to this machine, from its folder on one of its nodes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from orch_node import disk
from orch_node.filled_folder import MARK, all_files, hash_of
from orch_node.protocol.folders import EXECUTABLE, LINK
from orch_node.protocol.node_names import fold
from orch_node.protocol.record import RunNode, RunRecord

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.model.printable import one_line
from orchestrator.model.project import Project
from orchestrator.runs.fetch import Collected, Entry, FetchListener, collect, default_target
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.local import Local
from orchestrator.targets.connections.program_output import STDOUT
from orchestrator.targets.interface import FetchRequest

CODE = "code"  # the default destination of a project, in the run's folder
MEMBER_BYTES = 2048  # of an archive for each file, besides its content
EXTRA_MEMBERS = 10_000  # folders, at most
NOT_AS_SENT = "To see what the run has in its copy, which it may have changed: --from {copy}."


def requested_node(record: RunRecord, name: str | None) -> RunNode:
    """Return the named node of a run, or node0; raise RequestError if the run does not have it."""
    if name is None:
        return record.nodes[0]
    nodes = {node.node: node for node in record.nodes}
    if name not in nodes:
        raise RequestError(f"Run {record.run_id} has no node '{name}'.", hint=f"It has {fold(nodes)}.")
    return nodes[name]


def fetch_files(host: Local | Ssh, folder: Path, request: FetchRequest, listener: FetchListener) -> Collected:
    """Copy the requested files of a host to this machine.

    Args:
        host: the host that has the files.
        folder: the run's folder on this machine.
        request: the files. The default destination of local files is the folder that they are in.
        listener: receives the progress.

    Raises:
        ExecuteError: if the files cannot be read or written.
    """
    default = Path(request.source) if isinstance(host, Local) else default_target(folder, request.node)
    target = request.destination or default
    return collect(
        host, request.source, target, patterns=request.patterns, listener=listener, unchanged=request.unchanged
    )


def fetch_project(host: Local | Ssh, store: str, copy: str, folder: Path, request: FetchRequest) -> Collected:
    """Copy a project to this machine as it was sent, and verify its hash.

    Args:
        host: the host that has received it.
        store: the folder of what the host has received.
        copy: the run's copy of the project on the host.
        folder: the run's folder on this machine.
        request: the project and the destination.

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
            with staging_folder(target) as staging, tempfile.TemporaryFile() as archive:
                receive_archive(host, path, project, archive, hint)
                extract(archive, project, staging)
                if hash_of(staging) != project.digest:
                    raise ExecuteError(f"{path} is not as it was sent; somebody has changed it.", hint=hint)
                staging.replace(target)
        except tarfile.TarError as error:
            raise ExecuteError(f"{path} cannot be read: {error}.", hint=hint) from None
        except OSError as error:
            raise ExecuteError(f"{disk.describe_error(target, error)}.", hint="--to names another folder.") from None
    files = tuple(
        Entry(path=name, size=(target / name).lstat().st_size, sha256=sha256) for name, sha256 in project.files.items()
    )
    return Collected(folder=target, files=files, brought=tuple(project.files) if is_new else ())


def has_project(folder: Path, project: Project) -> bool:
    """Return whether a folder has exactly the files of a project; stop reading at the first other file."""
    is_subset = all(str(path.relative_to(folder)) in project.files for path in all_files(folder))
    return folder.is_dir() and is_subset and hash_of(folder) == project.digest


@contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder next to the target, which is deleted unless it is renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def receive_archive(host: Local | Ssh, path: str, project: Project, archive: IO[bytes], hint: str) -> None:
    """Write the tar archive of a project in a store to a file.

    Raises:
        ExecuteError: if the host does not have it, or sends more than the project has.
    """
    errors = bytearray()
    limit = project.size + MEMBER_BYTES * (len(project.files) + EXTRA_MEMBERS)

    def receive(descriptor: int, part: bytes) -> None:
        if descriptor != STDOUT:
            errors.extend(part[:MEMBER_BYTES])
        elif archive.tell() + len(part) > limit:
            raise ExecuteError(f"{path} is larger than what was sent; somebody has changed it.", hint=hint)
        else:
            archive.write(part)

    pack = ("env", "LC_ALL=C", "tar", "-c", "--hard-dereference", f"--exclude=./{MARK}", "-C", path, ".")
    if host.relay(pack, receive, threading.Event()) != 0:
        reason = (errors.decode(errors="replace").strip().splitlines() or ["tar failed"])[0]
        raise ExecuteError(
            f"The project is not there any more: {one_line(reason)}.",
            hint=f"`orch clean` removes what no run has used for 30 days. {hint}",
        )
    archive.seek(0)


def extract(archive: IO[bytes], project: Project, folder: Path) -> None:
    """Write those files of an archive to a folder that the project has, with the content that it has.

    Links are written last, so that no file is written through one.
    """
    links = []
    with tarfile.open(fileobj=archive, mode="r:") as members:
        for member in members:
            name, file = member.name.removeprefix("./"), members.extractfile(member) if member.isreg() else None
            content = file.read() if file else os.fsencode(member.linkname)
            kind = project.kinds.get(name, "")
            if project.files.get(name) != hashlib.sha256(content).hexdigest() or member.issym() != (kind == LINK):
                continue
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == LINK:
                links.append((path, member.linkname))
            else:
                path.write_bytes(content)
                path.chmod(0o755 if kind == EXECUTABLE else 0o644)
    for path, link in links:
        path.symlink_to(link)
