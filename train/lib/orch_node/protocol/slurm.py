"""slurm.json: what a job of Slurm has to know of its run; and what an agent tells of its node."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from orch_node.protocol import values
from orch_node.protocol.cores import Core
from orch_node.protocol.layout import RunPrecision

CONFIG = "slurm.json"
JOB = "slurm-job.json"
SCHEMA = 1
# Stands for node0's address, which only the job knows, in words of the launcher.
NODE0 = "address-of-node0"

OUT_OF_MEMORY = "it ran out of memory (--slurm mem=)"
# What Slurm prints when it ends processes for their memory, with cgroups and without.
MEMORY_LINE = re.compile(
    r"(?:slurmstepd|srun|slurmd)\b.*?"
    r"(?:exceeded (?:\w+ )?memory limit|out[- ]of[- ]memory|oom[-_ ]kill|exceeded \w+ memory)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class LocalStack:
    """`folder`: of each node's own, named by the content; `archive`: that all nodes see, with its
    `sha256`."""

    folder: str
    archive: str
    sha256: str


@dataclass(frozen=True)
class JobConfig:
    """`nodes` have ranks, `spare_nodes` are kept ready; `ppn`: ranks of each node. `env`: variables
    of all ranks; `preload`: names of libraries, where the nodes have them. `launcher`: its words,
    `launcher_env`: its variables; `files`: name in the run's folder -> content; `options`: of the
    supervisor. `launch`: what kind of launcher it is; `mpi`: the flavour of its hostfile.
    `requeue`: whether a job that has made room goes back into the queue, `max_requeues`: how often
    at most. `local`: from where the ranks run, if not from a shared folder. `precision`: None where
    the plan has decided."""

    run_id: str
    nodes: int
    spare_nodes: int
    ppn: int
    port: int
    backend: str
    backend_module: str
    setvars: str
    timeout_seconds: float
    env: dict[str, str]
    preload: tuple[str, ...]
    torch: str | None
    needs_bf16: bool
    launch: str
    mpi: str
    launcher: tuple[str, ...]
    launcher_env: dict[str, str]
    files: dict[str, str]
    options: tuple[str, ...]
    requeue: bool = False
    max_requeues: int | None = None
    local: LocalStack | None = None
    precision: RunPrecision | None = None
    schema: int = SCHEMA


@dataclass(frozen=True)
class Hello:
    """The first line of an agent: what its node is. `cores`: of the allocation; `confined`: whether
    Slurm holds the job to these. `address`, `interface`: by which it reaches node0."""

    node: str
    host: str
    cores: tuple[Core, ...]
    confined: bool
    flags: tuple[str, ...]
    address: str
    interface: str


@dataclass(frozen=True)
class Submitted:
    """slurm-job.json: the job of a run, in its folder. `notes`: what the job found and chose."""

    job: str
    restarts: int = 0
    notes: tuple[str, ...] = field(default=())


def cpu_counts(text: str) -> list[int]:
    """Return the CPUs of each node in SLURM_JOB_CPUS_PER_NODE: `2(x3),4` are those of four."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts


def memory_line(text: str) -> str:
    """Return the last line in which Slurm says that it ended processes for memory, or ''."""
    lines = (line.strip() for line in text.splitlines() if MEMORY_LINE.search(line))
    return next(reversed([*lines]), "")


def parse(text: str | bytes) -> JobConfig:
    """Raises ProtocolError."""
    return values.parse(JobConfig, text, CONFIG)


def parse_submitted(text: str | bytes) -> Submitted:
    """Parse slurm-job.json. Raises ProtocolError."""
    return values.parse(Submitted, text, JOB)


def parse_hello(text: str | bytes) -> Hello:
    """Raises ProtocolError."""
    return values.parse(Hello, text, "the first line of an agent")
