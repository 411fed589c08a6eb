"""The facts of a node: as facts.py prints them, and as `orch provision` has recorded them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

from orch_node.protocol import precision
from pydantic import ConfigDict, Field, ValidationError, field_validator

from orchestrator.errors import OrchError, RequestError
from orchestrator.load.node_values import (
    Address,
    Count,
    Digest,
    FromNode,
    HostKey,
    HostName,
    Interface,
    Line,
    NodePath,
    Number,
    Package,
    Port,
    Token,
    User,
    Word,
)
from orchestrator.model.command import LOGIN_SCRIPT_HINT
from orchestrator.model.printable import one_line
from orchestrator.state import State


class Cpu(FromNode):
    """A hardware thread and where it sits."""

    cpu: Number
    core: Number
    socket: Number
    numa: Number


class NicFacts(FromNode):
    """A network interface of hardware. `speed`: Mbit/s, 0 for unknown; `numa`: where it is near."""

    speed: Count
    numa: Number | None = None


class DeviceFacts(FromNode):
    """The fields mean what orch_node.protocol.fabrics.Device says."""

    name: Token
    driver: Token | Literal[""]
    link: Token | Literal[""]
    interface: Interface | Literal[""]
    speed: Count
    numa: Number | None = None
    active: bool


class ProofFacts(FromNode):
    """The fields mean what orch_node.protocol.fabrics.Proof says."""

    together: Digest
    rails: Number = 1
    gbit: float = Field(default=0.0, ge=0)
    microseconds: float = Field(default=0.0, ge=0)
    failed: Line = ""


class NodeFacts(FromNode):
    """What facts.py prints. Sizes in bytes; the fields mean what model.cluster.Facts says."""

    schema_: int = Field(alias="schema", default=1)
    hostname: HostName
    python: Token
    cpu_model: Line
    flags: list[Token]
    cpus: list[Cpu] = Field(min_length=1)
    memory_bytes: Count
    shm_bytes: Count
    libraries: dict[Token, NodePath]
    interfaces: dict[Interface, list[Address]]
    packages: dict[Package, Word]
    fingerprint: Digest = ""
    mpi: dict[Token, NodePath] = Field(default_factory=dict)
    gpus: Number = 0
    nics: dict[Interface, NicFacts] = Field(default_factory=dict)
    devices: list[DeviceFacts] = Field(default_factory=list)
    fabrics: dict[Token, Line] = Field(default_factory=dict)

    @field_validator("flags")
    @classmethod
    def check_flags(cls, flags: list[str]) -> list[str]:
        """Raise ValueError for a flag without the one that every CPU with it has."""
        precision.check_flags(flags)
        return flags


class NodeConnection(FromNode):
    """How Ansible reached the node, as the inventory has it: model.ssh_options.SshOptions."""

    host: Word
    port: str = Field(default="", pattern=r"^[0-9]{0,5}$")
    user: Line = ""
    key: Line = ""
    arguments: str = Field(default="", max_length=10_000)


class Verified(FromNode):
    """What the packages were when the node computed: alone, with all others, over all fabrics."""

    alone: str = Field(default="", max_length=200)
    together: str = Field(default="", max_length=1 << 20)
    fabrics: Digest = ""


class NodeRecord(NodeFacts):
    """The facts, and what provisioning has found and done; another version's keys are left out."""

    model_config = ConfigDict(extra="ignore")

    root: NodePath | None = None
    stack: Token | None = None
    venv: NodePath | None = None
    user: User | None = None
    port: Port = 22
    address: Address | None = None
    interface: Interface | None = None
    route: Interface | Literal[""] = ""
    detours: dict[HostName, Interface] = Field(default_factory=dict)
    host_keys: list[HostKey] = Field(default_factory=list)
    verified: Verified | None = None
    proved: dict[Token, ProofFacts] = Field(default_factory=dict)
    connection: NodeConnection | None = None


Model = TypeVar("Model", bound=FromNode)


class NotWhatANodeSays(OrchError):
    """An answer that is not of the form that it must have: the message says where."""

    advice = LOGIN_SCRIPT_HINT


class DamagedRecord(RequestError):
    """What is recorded of one node cannot be read: it counts as not provisioned."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(
            one_line(
                f"The recorded facts of {path.stem} cannot be read, and it counts as not provisioned: {path}: {problem}"
            ),
            hint="`orch provision` records them anew.",
        )

    def describe(self) -> str:
        return f"{self.message} ({self.hint})"


def checked(model: type[Model], value: object, what: str) -> Model:
    """`value`: as JSON has it. Raises NotWhatANodeSays."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise NotWhatANodeSays(one_line(f"{what}: {problem_of(error)}")) from None


def problem_of(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    return f"{key} = {first['input']!r:.80}: {first['msg']}" if key else first["msg"]


def recorded_facts(inventory: Path, host: str, tell: Callable[[str], None]) -> NodeRecord | None:
    """The record of one host; None if it was never provisioned, and, once told, if it cannot be
    read."""
    try:
        return read_record(State.of(inventory).record(host))
    except DamagedRecord as error:
        tell(error.describe())
        return None


def read_record(path: Path) -> NodeRecord | None:
    """None where there is none. Raises DamagedRecord."""
    try:
        return NodeRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedRecord(path, str(error.strerror)) from None
    except ValidationError as error:
        raise DamagedRecord(path, problem_of(error)) from None


def record_json(facts: object, node: str) -> str:
    """What is kept of a node, as text. Raises NotWhatANodeSays."""
    return written(checked(NodeRecord, facts, f"the facts of {node}"))


def written(record: NodeRecord) -> str:
    return json.dumps(record.model_dump(mode="json", by_alias=True, exclude_none=True))
