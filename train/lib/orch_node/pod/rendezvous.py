"""The key of a run's rendezvous in Kubernetes, stored on the run's volume.

torch's c10d rendezvous unpickles whatever is written into its store, and everybody in the pod
network can reach that store. The agents of a run sign what they write
(supervisor/torchrun_agent.py) with a key that the first pod creates. The key is not part of any
object of the cluster, of any argument or of the environment.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from pathlib import Path

from orch_node import whole_files

NAME = ".rendezvous-key"
SIZE = 64  # hexadecimal digits
MAX_TRIES = 10
NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # what link(2) returns on such volumes
LOCK_SECONDS = 30.0  # after which the pod that holds the lock counts as killed


def is_dynamic() -> bool:
    """Return whether the operator selects the c10d rendezvous; a static one unpickles nothing."""
    return os.environ.get("PET_RDZV_BACKEND") == "c10d"


def key_of(run_dir: Path) -> bytes:
    """Return the key of this run; the first pod creates it.

    Raises:
        OSError: if the key cannot be read or written, or is a symbolic link.
    """
    path = run_dir / NAME
    for _ in range(MAX_TRIES):
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                key = file.read()
        except FileNotFoundError:
            create_key(path)
            continue
        if len(key) == SIZE:
            return key
        raise OSError(None, "the key is damaged; delete this file", str(path))
    raise OSError(None, "the file disappears after each attempt to create it", str(path))


def create_key(path: Path) -> None:
    """Write a new key unless another pod has written one.

    A pod can be killed at any time, so the file gets its name when it is complete.
    """
    staging = path.with_name(f"{NAME}.{secrets.token_hex(4)}.tmp")
    whole_files.write(staging, secrets.token_hex(SIZE // 2))
    try:
        os.link(staging, path)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        rename_under_lock(staging, path)
    finally:
        staging.unlink(missing_ok=True)


def rename_under_lock(staging: Path, path: Path) -> None:
    """Rename a file unless there is one of the new name, or wait for the pod that does the same."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        lock.mkdir()
    except FileExistsError:
        deadline = time.monotonic() + LOCK_SECONDS
        while lock.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    else:
        if not path.exists():
            staging.replace(path)
    with contextlib.suppress(FileNotFoundError):
        lock.rmdir()
