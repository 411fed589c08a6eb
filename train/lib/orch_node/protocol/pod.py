"""pod.json: the plan of a run, as its pods read it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orch_node.protocol import values
from orch_node.protocol.layout import RunPrecision


@dataclass(frozen=True)
class PodProject:
    """The user's project: a gzipped tar archive, and the run's copy on the volume.

    Attributes:
        parts: the files that the archive is divided into.
        sha256: the hash of the archive.
        copy: the folder to unpack it to.
        working_directory: the folder in that copy in which the script starts.
        replaced: files of the archive that replace those of a copy that exists.
        removed: files that are removed from such a copy.
    """

    parts: tuple[str, ...]
    sha256: str
    copy: str
    working_directory: str
    replaced: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True)
class PodConfig:
    """The plan of a run, the same for all of its pods."""

    run_dir: str
    pods: int
    word: str
    ppn: int
    cpus: float  # of a pod
    threads: int  # of a rank
    backend: str
    backend_module: str
    timeout_seconds: float
    env: dict[str, str]  # of all ranks
    preload: tuple[str, ...]  # names of libraries for LD_PRELOAD, if the image has them
    stack: str
    needs_bf16: bool
    stall_timeout: float  # seconds; 0 for no limit
    precision: RunPrecision | None = None  # None if the plan has decided
    project: PodProject | None = None  # None if only the script is sent, or nothing
    attempt: int = 1  # the number of the first attempt of the job


def parse(text: str | bytes) -> PodConfig:
    """Parse pod.json.

    Raises:
        ProtocolError: if it is damaged.
    """
    return values.parse(PodConfig, text, "pod.json")


def node_name(pod: str) -> str:
    """Return the name that the plan has for a pod or its host.

    It is `worker-3` for orch-x-worker-3 (of a PyTorchJob), orch-x-3 and orch-x-3-abcde (of an Indexed Job), and
    `node-3` for orch-x-node-0-3 and orch-x-node-0-3-abcde (of a TrainJob).
    """
    name = pod.partition(".")[0]
    if match := re.search(r"-(worker|node)(?:-0)?-(\d+)(?:-[a-z0-9]{5})?$", name):
        return f"{match.group(1)}-{match.group(2)}"
    match = re.fullmatch(r"orch-.+-(\d{1,4})(?:-[a-z0-9]{5})?", name)
    return f"worker-{match.group(1)}" if match else pod
