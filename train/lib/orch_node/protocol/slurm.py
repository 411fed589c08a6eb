"""slurm.json: the run of a Slurm job; and the first message of its agents."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from orch_node.protocol import values
from orch_node.protocol.cores import Core
from orch_node.protocol.layout import RunPrecision

CONFIG = "slurm.json"
JOB = "slurm-job.json"
SCHEMA = 1
# A placeholder in the launcher's command for node0's address, which only the job knows.
NODE0 = "address-of-node0"

OUT_OF_MEMORY = "it ran out of memory (--slurm mem=)"
# The messages of Slurm when it ends processes that use too much memory, with and without cgroups.
MEMORY_LINE = re.compile(
    r"(?:slurmstepd|srun|slurmd)\b.*?"
    r"(?:exceeded (?:\w+ )?memory limit|out[- ]of[- ]memory|oom[-_ ]kill|exceeded \w+ memory)",
    re.IGNORECASE,
)
MEMORY_FIGURES = re.compile(r"\([0-9]+ ?> ?[0-9]+\)")  # how much the processes used, and their limit


@dataclass(frozen=True)
class LocalStack:
    """A stack that each node unpacks from an archive."""

    folder: str  # on the node's own disk, named by the content
    archive: str  # seen by all nodes
    sha256: str


@dataclass(frozen=True)
class JobConfig:
    """The plan of a run, as its job reads it."""

    run_id: str
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
    launch: str  # the name of the launcher
    mpi: str  # the flavour of its hostfile, or empty
    launcher: tuple[str, ...]  # its command
    launcher_env: dict[str, str]
    files: dict[str, str]  # name in the run's folder -> content
    options: tuple[str, ...]  # of the supervisor
    requeue: bool = False  # whether a preempted job is requeued
    max_requeues: int | None = None
    local: LocalStack | None = None  # None if the ranks run from a shared folder
    precision: RunPrecision | None = None  # None if the plan has decided
    working_directory: str = ""  # in which the script starts; empty for the run's folder
    schema: int = SCHEMA


@dataclass(frozen=True)
class Hello:
    """The first line of an agent, which describes its node."""

    node: str
    host: str
    cores: tuple[Core, ...]  # of the allocation
    confined: bool  # whether Slurm confines the job to these cores
    flags: tuple[str, ...]  # of the CPU
    address: str  # by which it reaches node0
    interface: str


@dataclass(frozen=True)
class Submitted:
    """slurm-job.json: the job of a run."""

    job: str
    restarts: int = 0
    notes: tuple[str, ...] = field(default=())  # remarks of the job for the user


def cpu_counts(text: str) -> list[int]:
    """Return the CPUs of each node in SLURM_JOB_CPUS_PER_NODE: `2(x3),4` describes four nodes."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts


def memory_line(text: str) -> str:
    """Return the last line in which Slurm reports that memory ran out, or ''.

    Lines with figures are preferred: they name the node that exceeded its limit, while all nodes of
    the job print the others.
    """
    lines = [line.strip() for line in text.splitlines() if MEMORY_LINE.search(line)]
    with_figures = [line for line in lines if MEMORY_FIGURES.search(line)]
    return next(reversed(with_figures or lines), "")


def parse(text: str | bytes) -> JobConfig:
    """Parse slurm.json.

    Raises:
        ProtocolError: if it is damaged.
    """
    return values.parse(JobConfig, text, CONFIG)


def parse_submitted(text: str | bytes) -> Submitted:
    """Parse slurm-job.json.

    Raises:
        ProtocolError: if it is damaged.
    """
    return values.parse(Submitted, text, JOB)


def parse_hello(text: str | bytes) -> Hello:
    """Parse the first line of an agent.

    Raises:
        ProtocolError: if it is damaged.
    """
    return values.parse(Hello, text, "the first line of an agent")
