"""What is recorded of an inventory's hosts: each file is read once, and a damaged one is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from orch_node.protocol.cores import cores_of
from orch_node.protocol.fabrics import Device, Proof

from orchestrator.errors import RequestError
from orchestrator.load.facts import DamagedRecord, NodeFacts, NodeRecord, read_record
from orchestrator.load.inventory import is_template
from orchestrator.model.cluster import Facts, Node
from orchestrator.model.ssh_options import SshOptions, host_block
from orchestrator.state import State

WHERE = attrgetter("numa", "socket", "core", "cpu")
OWN_STACK = "current"  # what `orch setup` installs


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Host -> what is known of it, its block of the ssh configuration where that must be written
    anew, and why its record cannot be read, with the remedy."""

    nodes: dict[str, Node] = field(default_factory=dict)
    blocks: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)


def recorded(state: State, chosen: Mapping[str, Mapping[str, Any]], known: Iterable[str], stack: str) -> Recorded:
    """`chosen`: host -> its variables, of those that are other machines; `known`: all hosts of the
    inventory. The ssh configuration is for all that have a record."""
    anew = bool(chosen) and not state.ssh_config_is_current()
    paths = {path.stem: path for path in state.records()} if anew else {}
    paths |= {name: state.record(name) for name in chosen}
    found = Recorded()
    for name in sorted(paths):
        try:
            record = read_record(paths[name])
            if record and name in chosen and record.root is not None:
                found.nodes[name] = node(state, name, chosen[name], record, stack)
            if record and anew and record.connection:
                found.blocks[name] = ssh_block(state, name, record)
        except DamagedRecord as error:
            gone = name not in known
            found.damaged[name] = (
                f"{error.message} (it is no host of the inventory: delete the file)" if gone else error.describe()
            )
            found.nodes.pop(name, None)
    return found


def node(state: State, name: str, variables: Mapping[str, Any], record: NodeRecord, stack: str) -> Node:
    """A node with its facts. Raises DamagedRecord."""
    return Node(
        name=name,
        address=address_of(state, name, variables, record),
        python=f"{record.root}/stacks/{stack}/bin/python",
        facts=parse_facts(record),
        via=("ssh", "-F", str(state.ssh_config), "--", name),
        root=str(record.root),
        repair="`orch provision`" + ("" if stack == OWN_STACK else f" with --stack {stack}"),
    )


def address_of(state: State, name: str, variables: Mapping[str, Any], record: NodeRecord) -> str:
    """Where the other nodes reach it: as the inventory says, unless in words that Ansible alone can
    render; then, as it was seen. Raises DamagedRecord."""
    said = str(variables.get("orch_address") or "")
    if said and not is_template(said):
        return said
    if record.address is None:
        raise DamagedRecord(state.record(name), "it has no address.")
    return record.address


def ssh_block(state: State, name: str, record: NodeRecord) -> str:
    """Raises DamagedRecord for what orch's own connections cannot carry, or must not."""
    connection = record.connection.model_dump() if record.connection else {}
    try:
        return host_block(SshOptions(node=name, **connection))
    except (RequestError, ValueError) as error:
        raise DamagedRecord(state.record(name), str(error)) from None


def parse_facts(record: NodeFacts) -> Facts:
    """The record that facts.py prints, as a value."""
    recorded = record if isinstance(record, NodeRecord) else None
    return Facts(
        hostname=record.hostname,
        python=record.python,
        cpu_model=record.cpu_model,
        flags=frozenset(record.flags),
        cores=cores_of(tuple(map(WHERE, record.cpus))),
        memory_bytes=record.memory_bytes,
        shm_bytes=record.shm_bytes,
        libraries=record.libraries,
        packages=record.packages,
        interfaces={name: tuple(found) for name, found in record.interfaces.items()},
        mpi=record.mpi,
        gpus=record.gpus,
        fingerprint=record.fingerprint,
        route=recorded.route if recorded else "",
        detours=recorded.detours if recorded else {},
        devices=tuple(Device(**one.model_dump()) for one in record.devices),
        fabrics=record.fabrics,
        proved=proofs_of(recorded) if recorded else {},
    )


def proofs_of(record: NodeRecord) -> dict[str, Proof]:
    return {name: Proof(**one.model_dump()) for name, one in record.proved.items()}
