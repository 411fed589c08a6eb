"""container.json: what the container of each node is made of; and what a rank in it is told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from orch_node.protocol import files, values
from orch_node.protocol.layout import Placement

SCHEMA = 1
BY_ENTRYPOINT = "node"  # the image's own entrypoint starts the ranks of a node
DOCKER, APPTAINER, PYXIS = "docker", "apptainer", "pyxis"  # Apptainer is also Singularity


@dataclass(frozen=True)
class ContainerSpec:
    """`start`: rank, where orch starts each in the container, or node. `preload`: names of
    libraries, where the image has them. `processes`: node -> ranks that the image itself starts
    there. `options`: words of `docker run`, `apptainer exec` or, of Pyxis, `srun`. `env_file`: a
    file of variables on the node. `engine`: what holds the container."""

    image: str
    start: str
    python: str
    preload: tuple[str, ...]
    processes: dict[str, int]
    options: tuple[str, ...]
    env_file: str = ""
    engine: str = DOCKER
    schema: int = SCHEMA

    @property
    def starts_ranks(self) -> bool:
        return self.start == BY_ENTRYPOINT


@dataclass(frozen=True)
class RankOrder:
    """What a rank's wrapper on the node tells the one in the container. `environment`: of the
    training process, secrets too, whose names are `secrets`. `preload`: as in the ContainerSpec.
    `given`: of its env_file; they add to the image's own."""

    placement: Placement
    environment: dict[str, str]
    command: tuple[str, ...]
    log: str
    setvars: str = ""
    preload: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    given: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ContainedRank:
    """What the wrapper in the container answers: first the pid, at last how the rank ended."""

    pid: int | None = None
    status: int | None = None
    max_rss_bytes: int = 0
    cpu_seconds: float = 0.0


def parse(text: str | bytes) -> ContainerSpec:
    """Raises ProtocolError."""
    return values.parse(ContainerSpec, text, files.CONTAINER)


def render(spec: ContainerSpec) -> str:
    value = values.record(spec)
    return json.dumps({"schema": value.pop("schema"), **value}, indent=1) + "\n"
