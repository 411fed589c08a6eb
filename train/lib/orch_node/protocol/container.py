"""container.json: the containers of a run; and the messages between a rank's two wrappers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from orch_node.protocol import files, values
from orch_node.protocol.layout import Placement

SCHEMA = 1
BY_ENTRYPOINT = "node"  # the entrypoint of the image starts the ranks of a node
DOCKER, APPTAINER = "docker", "apptainer"  # Apptainer is also Singularity


@dataclass(frozen=True)
class ContainerSpec:
    """The settings with which the containers of a run are started."""

    image: str
    start: str  # "rank": orch starts each rank in the container; "node": the entrypoint does
    python: str
    preload: tuple[str, ...]  # names of libraries for LD_PRELOAD, if the image has them
    processes: dict[str, int]  # node -> number of ranks that the entrypoint starts
    options: tuple[str, ...]  # of `docker run` or `apptainer exec`
    env_file: str = ""  # a file of variables on the node
    engine: str = DOCKER
    schema: int = SCHEMA

    @property
    def starts_ranks(self) -> bool:
        """Return whether the entrypoint of the image starts the ranks."""
        return self.start == BY_ENTRYPOINT


@dataclass(frozen=True)
class RankRequest:
    """A message from a rank's wrapper on the node to the wrapper in the container."""

    placement: Placement
    environment: dict[str, str]  # of the training process, with secrets
    command: tuple[str, ...]
    log: str
    setvars: str = ""
    preload: tuple[str, ...] = ()  # as in the ContainerSpec
    secrets: tuple[str, ...] = ()  # names of the variables that are secrets
    given: dict[str, str] = field(default_factory=dict)  # variables of the env_file, in addition to those of the image


@dataclass(frozen=True)
class ContainedRank:
    """A response of the wrapper in the container: first the pid, finally how the rank ended."""

    pid: int | None = None
    status: int | None = None
    max_rss_bytes: int = 0
    cpu_seconds: float = 0.0


def parse(text: str | bytes) -> ContainerSpec:
    """Parse container.json.

    Raises:
        ProtocolError: if it is damaged.
    """
    return values.parse(ContainerSpec, text, files.CONTAINER)


def render(spec: ContainerSpec) -> str:
    """Return the content of container.json."""
    value = values.record(spec)
    return json.dumps({"schema": value.pop("schema"), **value}, indent=1) + "\n"
