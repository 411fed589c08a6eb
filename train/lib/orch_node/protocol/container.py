"""container.json: the containers of a run; their variables; and the messages between a rank's two wrappers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orch_node.protocol import files, values
from orch_node.protocol.layout import RankEntry

BY_ENTRYPOINT = "node"  # the entrypoint of the image starts the ranks of a node
DOCKER, APPTAINER = "docker", "apptainer"  # Apptainer is also Singularity
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
    schema: int = 1

    @property
    def starts_ranks(self) -> bool:
        """Return whether the entrypoint of the image starts the ranks."""
        return self.start == BY_ENTRYPOINT


@dataclass(frozen=True)
class RankRequest:
    """A message from a rank's wrapper on the node to the wrapper in the container."""

    placement: RankEntry
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
    code: int | None = None  # negative: a signal
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


class EnvFileError(Exception):
    """An unreadable file of variables, or a line in it that is not a variable."""


def read_variables(path: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a file in the format of `docker run --env-file`: NAME=VALUE, with the value as written.

    orch reads it itself and passes the variables by a pipe: the engine would show them to all its users. A line
    NAME takes the value from `environ`, if it is there.

    Raises:
        EnvFileError: if a line is wrong; the message never contains a value.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise EnvFileError(f"env_file {path} cannot be read: {error.strerror}") from None
    except UnicodeError:
        raise EnvFileError(f"env_file {path} is not UTF-8") from None
    variables = {}
    for number, line in enumerate(text.split("\n"), start=1):
        assignment = line.removesuffix("\r").lstrip()
        name, has_value, value = assignment.partition("=")
        if not assignment or assignment.startswith("#"):
            continue
        if not NAME.fullmatch(name) or "\0" in value:
            raise EnvFileError(f"env_file {path}: line {number} is not NAME=VALUE")
        if has_value or name in environ:
            variables[name] = value if has_value else environ[name]
    return variables
