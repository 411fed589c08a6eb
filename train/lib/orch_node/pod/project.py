"""Unpack the user's project, which is mounted in a pod, into the run's copy on its volume."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
from pathlib import Path

from orch_node import disk
from orch_node.protocol.pod import PodProject


class ProjectError(Exception):
    """An error whose message is the reason, in one sentence, why there is no copy of the project."""


def unpack(project: PodProject, attempt: int = 1) -> None:
    """Create the run's copy of the project, unless another pod has created it.

    A pod can be killed at any time, so the copy gets its name when it is complete. A copy that exists gets the files
    that a resumed run replaces, unless a pod of the same attempt has replaced them, which a mark shows.

    Raises:
        ProjectError: if the archive is damaged, or the copy cannot be written.
    """
    copy = Path(project.copy)
    is_new, mark = not copy.is_dir(), copy.with_name(f".{copy.name}-{attempt}")
    if not is_new and (mark.exists() or not (project.replaced or project.removed)):
        return
    archive = read_archive(project)
    try:
        with tempfile.TemporaryDirectory(prefix=f"{copy.name}.", dir=copy.parent) as folder:
            staging = Path(folder, copy.name)
            staging.mkdir(mode=0o700)
            extract(archive, staging)
            if is_new:
                move(staging, copy)
                return
            for name in project.replaced:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                (staging / name).replace(copy / name)
        for name in project.removed:
            (copy / name).unlink(missing_ok=True)
        mark.touch(0o600)
    except OSError as error:
        raise ProjectError(disk.describe_error(copy, error)) from None


def read_archive(project: PodProject) -> bytes:
    """Return the archive after its hash is checked.

    Raises:
        ProjectError: if it is damaged.
    """
    try:
        archive = b"".join(Path(part).read_bytes() for part in project.parts)
    except OSError as error:
        raise ProjectError(f"the project cannot be read: {error}.") from None
    if hashlib.sha256(archive).hexdigest() != project.sha256:
        raise ProjectError("the project is not the one that was sent: somebody has changed its ConfigMaps.")
    return archive


def extract(archive: bytes, folder: Path) -> None:
    """Extract a gzipped tar archive that orch has made."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
        # Python 3.10 and 3.11 have no filters before 3.10.12 and 3.11.4.
        members.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        members.extractall(folder)  # noqa: S202  the archive has the hash of the one that orch has made


def move(staging: Path, copy: Path) -> None:
    """Give the complete copy its name, unless another pod was faster."""
    try:
        staging.rename(copy)
    except OSError:
        if not copy.is_dir():
            raise
