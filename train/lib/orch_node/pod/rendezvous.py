"""The key of the rendezvous of a run's pods, on the run's own volume.

torch's c10d rendezvous unpickles what anybody writes into its store, which everybody in the pod
network reaches. The agents of this run sign what they write (supervisor/torchrun_agent.py) with a
key that the first pod makes. It is in no object of the cluster, no argument and no environment.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

from orch_node.whole_files import PRIVATE

NAME = ".rendezvous-key"
SIZE = 64  # hexadecimal digits
WAIT_SECONDS = 30.0
TICK_SECONDS = 0.1


def is_dynamic() -> bool:
    """Whether the operator has told torchrun to meet by c10d. A static rendezvous unpickles
    nothing."""
    return os.environ.get("PET_RDZV_BACKEND") == "c10d"


def key_of(run_dir: Path) -> bytes:
    """Of this run: made by whoever comes first. Raises OSError."""
    path = run_dir / NAME
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE)
    except FileExistsError:
        return made_by_another(path)
    key = secrets.token_hex(SIZE // 2).encode()
    try:
        with os.fdopen(file, "wb") as key_file:
            key_file.write(key)
            key_file.flush()
            os.fsync(key_file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)  # on a full volume: every later pod would wait for the key
        raise
    return key


def made_by_another(path: Path) -> bytes:
    deadline = time.monotonic() + WAIT_SECONDS
    while len(key := read(path)) < SIZE:
        if time.monotonic() > deadline:
            raise TimeoutError(None, "the pod that makes this file has not written it", str(path))
        time.sleep(TICK_SECONDS)
    return key


def read(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read()
