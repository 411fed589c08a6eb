"""Unpack the user's project, which is mounted in a pod, into the run's copy on its volume."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
from pathlib import Path

from orch_node import atomic_write
from orch_node.protocol.pod import PodProject


def unpack(project: PodProject, attempt: int = 1) -> None:
    """Create the run's copy of the project, unless another pod has created it.

    A pod can be killed at any time, so the copy gets its name when it is complete. A copy that exists gets the files
    that a resumed run replaces, unless a pod of the same attempt has replaced them, which a mark shows.

    Raises:
        ValueError: if the archive is damaged.
        OSError: if the copy cannot be written.
    """
    copy = Path(project.copy)
    is_new, mark = not copy.is_dir(), copy.with_name(f".{copy.name}-{attempt}")
    if not is_new and (mark.exists() or not (project.replaced or project.removed)):
        return
    archive = b"".join(Path(part).read_bytes() for part in project.parts)
    if hashlib.sha256(archive).hexdigest() != project.sha256:
        raise ValueError("the project is not the one that was sent: somebody has changed its ConfigMaps.")
    if is_new:
        with atomic_write.folder(copy) as staging:
            extract(archive, staging)
        return
    with tempfile.TemporaryDirectory(prefix=f"{copy.name}.", dir=copy.parent) as folder:
        extract(archive, Path(folder))
        for name in project.replaced:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            os.utime(Path(folder, name), follow_symlinks=False)  # else Python may use the bytecode of the earlier file
            Path(folder, name).replace(copy / name)
    for name in project.removed:
        (copy / name).unlink(missing_ok=True)
    mark.touch(0o600)


def extract(archive: bytes, folder: Path) -> None:
    """Extract a gzipped tar archive that orch has made."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
        # Python 3.10 and 3.11 have no filters before 3.10.12 and 3.11.4.
        members.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        members.extractall(folder)  # noqa: S202  the archive has the hash of the one that orch has made
