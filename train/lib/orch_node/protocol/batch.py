"""job.json: the run of a job of a batch system; and the first message of its agents."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from orch_node.protocol import values
from orch_node.protocol.cores import Core
from orch_node.protocol.layout import RunPrecision

CONFIG, SCRIPT = "job.json", "job.sh"
# A placeholder in the launcher's command for node0's address, which only the job knows.
NODE0 = "address-of-node0"


@dataclass(frozen=True)
class JobConfig:
    """The plan of a run, as its job reads it."""

    system: str  # the name of the batch system
    nodes: int  # with ranks
    spare_nodes: int
    ppn: int  # ranks per node
    port: int
    backend: str
    backend_module: str
    setvars: str
    timeout_seconds: float
    env: dict[str, str]  # of all ranks
    preload: tuple[str, ...]  # names of libraries for LD_PRELOAD, if the nodes have them
    torch: str | None
    needs_bf16: bool
    mpi: str  # the implementation of its hostfile, or empty
    launcher: tuple[str, ...]  # the launcher's command
    launcher_env: dict[str, str]
    files: dict[str, str]  # name in the run's folder -> content
    options: tuple[str, ...]  # of the supervisor
    requeue: bool = False  # whether a preempted job is requeued
    max_requeues: int | None = None
    precision: RunPrecision | None = None  # None if the plan has decided
    working_directory: str = ""  # in which the script starts; empty for the run's folder
    on_gpus: bool = False  # whether the backend is for GPUs
    schema: int = 1


@dataclass(frozen=True)
class Hello:
    """The first line of an agent, which describes its node."""

    node: str
    host: str
    cores: tuple[Core, ...]  # of the allocation
    confined: bool  # whether the system confines the job to these cores
    flags: tuple[str, ...]  # of the CPU
    address: str  # by which it reaches node0
    interface: str
    gpus: tuple[int, ...] = ()  # the NUMA node of each GPU; -1 if it is unknown


@dataclass(frozen=True)
class Submitted:
    """slurm-job.json or that of another system: the job of a run."""

    job: str
    restarts: int = 0
    notes: tuple[str, ...] = field(default=())  # remarks of the job for the user


def job_file(system: str) -> str:
    """Return the name of the file with the job of a run, in the run's folder."""
    return f"{system}-job.json"


def job_number(job: str) -> int:
    """Return the number at the beginning of a job's id; -1 if there is none."""
    digits = re.match("[0-9]*", job)
    return int(digits[0]) if digits and digits[0] else -1


def parse(text: str | bytes) -> JobConfig:
    """Parse job.json.

    Raises:
        ProtocolError: if it is damaged.
    """
    return values.parse(JobConfig, text, CONFIG)


def parse_submitted(text: str | bytes) -> Submitted:
    """Parse the file with the job of a run.

    Raises:
        ProtocolError: if it is damaged.
    """
    return values.parse(Submitted, text, "the record of the job")
