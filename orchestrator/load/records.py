"""The facts of a node, from facts.py or from the record of `orch provision`, and the records of an inventory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from orch_node.protocol import values
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.errors import OrchError, RequestError, first_problem
from orchestrator.files import NODES, State, write_private
from orchestrator.load.inventory import is_template
from orchestrator.load.ssh_options import host_block
from orchestrator.model.cluster import Node
from orchestrator.model.facts import STRICT, Address, Digest, Facts, HostName, Interface, Line, NodePath, Token, Word
from orchestrator.model.measurement import Measurement
from orchestrator.model.printable import LOGIN_SCRIPT_HINT, one_line


class FromNode(BaseModel):
    """A value sent by a node: exactly these keys, of exactly these types."""

    model_config = ConfigDict(**STRICT, frozen=True)


class SshSettings(FromNode):
    """The settings of ssh for one host; `arguments` are those of ssh, as typed."""

    host: Word
    port: str = Field(default="", pattern=r"^[0-9]{0,5}$")
    user: Line = ""
    key: Line = ""
    arguments: str = Field(default="", max_length=10_000)


class NodeConnection(SshSettings):
    """The connection settings that Ansible used, and those of the jump hosts by name."""

    hops: dict[HostName, SshSettings] = Field(default_factory=dict)


class Verified(FromNode):
    """The package fingerprints with which the node last passed its checks: alone, with all nodes, per fabric."""

    alone: str = Field(default="", max_length=200)
    together: str = Field(default="", max_length=1 << 20)
    fabrics: Digest = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord(Facts):
    """The facts of a node and the results of provisioning it; unknown keys are ignored."""

    __pydantic_config__ = ConfigDict(**{**STRICT, "extra": "ignore"})

    root: NodePath | None = None
    stack: Token | None = None
    address: Address | None = None
    interface: Interface | None = None
    verified: Verified | None = None
    connection: NodeConnection | None = None


ADAPTERS: dict[Any, TypeAdapter[Any]] = {}
T = TypeVar("T")


class InvalidResponse(OrchError):
    """An error for a node's response that does not have the expected form."""

    default_hint = LOGIN_SCRIPT_HINT


class DamagedRecord(RequestError):
    """An error for an unreadable record; the node counts as not provisioned."""

    def __init__(self, path: Path, problem: str) -> None:
        message = f"{path.stem} counts as not provisioned, because its record {path} cannot be read: {problem}"
        super().__init__(one_line(message), hint="`orch provision` replaces it.")

    def describe(self) -> str:
        return f"{self.message} ({self.hint})"


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return the adapter of a class; it is built once, which takes many milliseconds."""
    return ADAPTERS.get(kind) or ADAPTERS.setdefault(kind, TypeAdapter(kind))


def validate(kind: type[T], value: object, source: str) -> T:
    """Return JSON data as an instance of a class.

    Raises:
        InvalidResponse: naming the source and the key that is wrong.
    """
    try:
        return adapter(kind).validate_json(json.dumps(value))
    except ValidationError as error:
        raise InvalidResponse(one_line(f"{source}: {describe_problem(error)}")) from None


def describe_problem(error: ValidationError) -> str:
    """Return the first problem and the key that has it."""
    key, message = first_problem(error)
    value = error.errors(include_url=False)[0]["input"]
    return f"{key} = {value!r:.80}: {message}" if key else message


def recorded_facts(inventory: Path, host: str, warn: Callable[[str], None]) -> NodeRecord | None:
    """Return the record of a host; None if there is none, or, after a warning, if it is damaged."""
    try:
        return read_record(State.of(inventory).record(host))
    except DamagedRecord as error:
        warn(error.describe())
        return None


def read_record(path: Path) -> NodeRecord | None:
    """Return a node's record; None if there is no such file.

    Raises:
        DamagedRecord: if it cannot be read.
    """
    try:
        return adapter(NodeRecord).validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedRecord(path, str(error.strerror)) from None
    except ValidationError as error:
        raise DamagedRecord(path, describe_problem(error)) from None


def dump(value: object) -> Any:
    """Return what a node has sent for JSON, as validate() takes it."""
    return adapter(type(value)).dump_python(value, mode="json", by_alias=True, exclude_none=True)


MEASURED = "measured.json"  # in the state of an inventory or a batch system
OWN_STACK = "current"  # what `orch setup` installs


def read_measurement(path: Path) -> Measurement | None:
    """Return what was measured; None if nothing was, or another version has written the file."""
    return values.load(lambda content: values.parse(Measurement, content, str(path)), path)


def write_measurement(path: Path, measurement: Measurement) -> None:
    """Write what was measured, in place of an earlier measurement."""
    write_private(path, json.dumps(values.record(measurement), indent=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records of the hosts of an inventory.

    Attributes:
        nodes: the provisioned nodes.
        ssh_blocks: their blocks of the ssh configuration, if it must be rewritten.
        damaged: why each damaged record cannot be read, and what to do.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    ssh_blocks: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)


def load_records(state: State, selected: Mapping[str, Mapping[str, Any]], hosts: Iterable[str], stack: str) -> Records:
    """Load the records of the selected hosts, and of all hosts if the ssh configuration must be rewritten.

    Args:
        state: the state of the inventory.
        selected: the variables of each selected host that is not this machine.
        hosts: all hosts of the inventory.
        stack: the stack whose Python runs the ranks.
    """
    rewrite = bool(selected) and not state.ssh_config_is_current()
    paths = {path.stem: path for path in (state.folder / NODES).glob("*.json")} if rewrite else {}
    paths |= {name: state.record(name) for name in selected}
    records = Records()
    for name in sorted(paths):
        try:
            record = read_record(paths[name])
            if record and name in selected and record.root is not None:
                records.nodes[name] = make_node(state, name, selected[name], record, stack)
            if record and rewrite and record.connection:
                records.ssh_blocks[name] = connection_blocks(name, record.connection)
        except (RequestError, ValueError) as error:
            damage = error if isinstance(error, DamagedRecord) else DamagedRecord(paths[name], str(error))
            unused = f"{damage.message} (not a host of the inventory: delete the file)"
            records.damaged[name] = damage.describe() if name in hosts else unused
            records.nodes.pop(name, None)
    return records


def make_node(state: State, name: str, variables: Mapping[str, Any], record: NodeRecord, stack: str) -> Node:
    """Return a node with its facts.

    Raises:
        DamagedRecord: if the record has no address.
    """
    return Node(
        name=name,
        address=address_of(state, name, variables, record),
        python=f"{record.root}/stacks/{stack}/bin/python",
        facts=record,
        via=("ssh", "-F", str(state.ssh_config), "--", name),
        root=str(record.root),
        repair="`orch provision`" + ("" if stack == OWN_STACK else f" with --stack {stack}"),
    )


def address_of(state: State, name: str, variables: Mapping[str, Any], record: NodeRecord) -> str:
    """Return the address for other nodes: orch_address, or the recorded one if only Ansible can render that.

    Raises:
        DamagedRecord: if there is neither.
    """
    address = str(variables.get("orch_address") or "")
    if address and not is_template(address):
        return address
    if record.address is None:
        raise DamagedRecord(state.record(name), "it has no address.")
    return record.address


def connection_blocks(name: str, connection: NodeConnection) -> str:
    """Return the blocks of a host and its jump hosts; raise RequestError or ValueError for a setting that is unsafe."""
    settings: dict[str, SshSettings] = {name: connection, **connection.hops}
    return "\n".join(host_block(host, **values.model_dump(exclude={"hops"})) for host, values in settings.items())
