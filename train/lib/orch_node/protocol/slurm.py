"""slurm.json: what a job of Slurm has to know of its run; and what an agent tells of its node."""

from __future__ import annotations

from dataclasses import dataclass, field

from orch_node.protocol import values
from orch_node.protocol.cores import Core

CONFIG = "slurm.json"
JOB = "slurm-job.json"
SCHEMA = 1
# Stands for node0's address, which only the job knows, in words of the launcher.
NODE0 = "address-of-node0"


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
    `requeue`: whether a job that has made room goes back into the queue. `local`: from where the
    ranks run, if not from a shared folder."""

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
    local: LocalStack | None = None
    schema: int = SCHEMA


@dataclass(frozen=True)
class Hello:
    """The first line of an agent: what its node is. `key`: of the job, so that nobody else takes
    the place of a node. `cores`: of the allocation; `confined`: whether Slurm holds the job to
    these. `address`, `interface`: by which it reaches node0."""

    key: str
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


def parse(text: str | bytes) -> JobConfig:
    """Raises ProtocolError."""
    return values.parse(JobConfig, text, CONFIG)


def parse_hello(text: str | bytes) -> Hello:
    """Raises ProtocolError."""
    return values.parse(Hello, text, "the first line of an agent")
