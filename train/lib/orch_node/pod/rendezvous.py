"""The rendezvous of a run's pods: its key, stored on the run's volume, and that of a plain Indexed Job.

torch's c10d rendezvous unpickles whatever is written into its store, and everybody in the pod
network can reach that store. The agents of a run sign what they write
(supervisor/torchrun.py) with a key that the first pod creates. The key is not part of any
object of the cluster, of any argument or of the environment.

A plain Indexed Job has no operator that sets up the rendezvous. The Job numbers its pods, and each has a name in the
Job's headless service. All pods meet at the first one. A name resolves only when its pod has an address, and torchrun
fails on a name that does not resolve. The other pods therefore wait for the first, which may wait for a node or its
image.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import time
from pathlib import Path

from orch_node import atomic_write
from orch_node.pod.relay import emit_event
from orch_node.protocol.events import Waiting

FOLDER, NAME = ".rendezvous", "key"
SIZE = 64  # hexadecimal digits
INDEX = "JOB_COMPLETION_INDEX"  # set by Kubernetes, also in the pods of a TrainJob
ENDPOINT = "PET_RDZV_ENDPOINT"
JOIN_SECONDS = 3600.0
REPORT_SECONDS = 30.0
TICK_SECONDS = 0.5


def key_of(run_dir: Path) -> bytes:
    """Return the key of this run; the first pod creates it.

    A pod can be killed at any time, so the folder of the key gets its name when it is complete.

    Raises:
        OSError: if the key cannot be read or written, or is a symbolic link.
    """
    folder = run_dir / FOLDER
    if not folder.is_dir():
        with atomic_write.folder(folder) as staging:
            atomic_write.write(staging / NAME, secrets.token_hex(SIZE // 2))
    with open(os.open(folder / NAME, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        key = file.read()
    if len(key) != SIZE:
        raise OSError(None, "the key is damaged; delete this file", str(folder / NAME))
    return key


def options() -> list[str]:
    """Return the additional options of torchrun, which are empty if an operator sets them.

    Raises:
        TimeoutError: if the first pod does not respond.
    """
    index = os.environ.get(INDEX)
    host, _, port = os.environ.get(ENDPOINT, "").rpartition(":")
    if index is None or not host:
        return []
    conf = f"--rdzv_conf=join_timeout={JOIN_SECONDS:.0f},is_host="
    if index == "0":
        return [f"{conf}1", f"--rdzv_endpoint={os.uname().nodename}:{port}"]
    await_first(host, int(port))
    return [f"{conf}0"]


def await_first(host: str, port: int) -> None:
    """Wait until the torchrun of the first pod accepts connections.

    Raises:
        TimeoutError: if it does not within an hour.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    start = last_report = time.monotonic()
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5.0):
            return
        now = time.monotonic()
        if now - start > JOIN_SECONDS:
            raise TimeoutError(f"no answer for {JOIN_SECONDS:.0f} s from the first pod, {host}")
        if now - last_report > REPORT_SECONDS:
            emit_event(Waiting(text=f"waiting for the first pod, {host}"))
            last_report = now
        time.sleep(TICK_SECONDS)
