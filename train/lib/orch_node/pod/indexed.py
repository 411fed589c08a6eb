"""How the pods of a plain Indexed Job meet: no operator is there who would tell them.

The Job numbers its pods. Each has a name in the Job's headless service, and the first is where all
meet. A name is known only once its pod has an address, and torchrun gives up on one that is not, so
the others wait for the first, which may wait for a node, or for its image.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from orch_node.pod.mpi import TELL_SECONDS, answers
from orch_node.pod.relay import say
from orch_node.protocol.events import Waiting

INDEX = "JOB_COMPLETION_INDEX"  # Kubernetes' own; those of a TrainJob have it, too
ENDPOINT = "PET_RDZV_ENDPOINT"
JOIN_SECONDS = 3600.0
TICK_SECONDS = 0.5


def options() -> list[str]:
    """What torchrun is told besides; nothing where an operator has said it. Raises TimeoutError."""
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
    """Until the first pod's torchrun answers. Raises TimeoutError."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    began = told = time.monotonic()
    while not answers(host, port):
        now = time.monotonic()
        if now - began > JOIN_SECONDS:
            raise TimeoutError(f"no answer for {JOIN_SECONDS:.0f} s from the first pod, {host}")
        if now - told > TELL_SECONDS:
            say(Waiting(text=f"waiting for the first pod, {host}"))
            told = now
        time.sleep(TICK_SECONDS)
