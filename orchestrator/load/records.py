"""Loads the records of an inventory's hosts; each file is read once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from orch_node.protocol import values
from orch_node.protocol.cores import cores_of
from orch_node.protocol.fabrics import Device, Proof
from orch_node.protocol.values import ProtocolError

from orchestrator.errors import RequestError
from orchestrator.files import NODES, State, private_folder, write_private
from orchestrator.load.facts import DamagedRecord, NodeConnection, NodeFacts, NodeRecord, SshSettings, read_record
from orchestrator.load.inventory import is_template, read_inventory
from orchestrator.model.cluster import Facts, Gpu, Node
from orchestrator.model.measurement import Measurement
from orchestrator.model.ssh_options import SshOptions, host_block

MEASURED = "measured.json"  # in the state of an inventory or a batch system
LOCATION = attrgetter("numa", "socket", "core", "cpu")
OWN_STACK = "current"  # what `orch setup` installs
HOSTS = "hosts.json"  # in the state of an inventory: what identifies its hosts
IDENTITY = ("ansible_host", "ansible_port", "ansible_user", "ansible_connection", "orch_root")


def read_measurement(path: Path) -> Measurement | None:
    """Return what was measured; None if nothing was, or another version has written the file."""
    try:
        return values.parse(Measurement, path.read_bytes(), str(path))
    except (OSError, ProtocolError):
        return None


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


def state_of(source: Path) -> State:
    """Return the state of an inventory; if it has no records, the newest one of an inventory with the same hosts.

    So nodes stay provisioned when the folder of their inventory is moved or copied.
    """
    state = State.of(source)
    files = [path for path in state.folder.parent.glob(f"*/{HOSTS}") if (path.parent / NODES).is_dir()]
    if (state.folder / NODES).is_dir() or not files:
        return state
    hosts = hosts_of(read_inventory(source))
    matches = [path for path in files if has_same_hosts(path, hosts)]
    return State(folder=max(matches, key=lambda path: path.stat().st_mtime).parent) if matches else state


def hosts_of(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return what identifies each host of an inventory that is another machine."""
    return {
        name: [str(variables.get(key, "")) for key in IDENTITY]
        for name, variables in hosts.items()
        if variables.get("ansible_connection") != "local"
    }


def has_same_hosts(path: Path, hosts: Mapping[str, list[str]]) -> bool:
    """Return whether a recorded inventory shares hosts with another one, and all of these are the same machines."""
    try:
        recorded = json.loads(path.read_bytes())
        shared = hosts.keys() & recorded.keys()
    except (OSError, ValueError, RecursionError, AttributeError):
        return False
    is_same = all(hosts[name] == recorded[name] and not any(map(is_template, hosts[name])) for name in shared)
    return bool(shared) and is_same


def claim_state(source: Path, hosts: Mapping[str, Mapping[str, Any]]) -> State:
    """Return the state of an inventory that a command changes, with the records of a moved or copied inventory."""
    state, origin = State.of(source), state_of(source)
    if origin != state:
        private_folder(state.folder)
        for folder in filter(Path.is_dir, (origin.folder / NODES, origin.trust)):
            shutil.copytree(folder, state.folder / folder.name, dirs_exist_ok=True)
    write_private(state.folder / HOSTS, json.dumps(hosts_of(hosts)))
    return state


def load_records(
    state: State, selected: Mapping[str, Mapping[str, Any]], all_hosts: Iterable[str], stack: str
) -> Records:
    """Load the records of the selected hosts, and of all hosts if the ssh configuration must be rewritten.

    Args:
        state: the state of the inventory.
        selected: the variables of each selected host that is not this machine.
        all_hosts: all hosts of the inventory.
        stack: the stack whose Python runs the ranks.
    """
    rewrite = bool(selected) and not state.ssh_config_is_current()
    paths = {path.stem: path for path in state.records()} if rewrite else {}
    paths |= {name: state.record(name) for name in selected}
    records = Records()
    for name in sorted(paths):
        try:
            record = read_record(paths[name])
            if record and name in selected and record.root is not None:
                records.nodes[name] = make_node(state, name, selected[name], record, stack)
            if record and rewrite and record.connection:
                records.ssh_blocks[name] = ssh_blocks(state, name, record.connection)
        except DamagedRecord as error:
            records.damaged[name] = (
                error.describe()
                if name in all_hosts
                else f"{error.message} (not a host of the inventory: delete the file)"
            )
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
        facts=parse_facts(record),
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


def ssh_blocks(state: State, name: str, connection: NodeConnection) -> str:
    """Return the blocks of the ssh configuration for a host and its jump hosts.

    Raises:
        DamagedRecord: if orch's connections cannot use a recorded setting, or it is unsafe.
    """
    try:
        return connection_blocks(name, connection)
    except (RequestError, ValueError) as error:
        raise DamagedRecord(state.record(name), str(error)) from None


def connection_blocks(name: str, connection: NodeConnection) -> str:
    """Return the blocks of a host and its jump hosts; raise RequestError or ValueError for a setting that is unsafe."""
    settings: dict[str, SshSettings] = {name: connection, **connection.hops}
    blocks = [
        host_block(SshOptions(node=host, **values.model_dump(exclude={"hops"}))) for host, values in settings.items()
    ]
    return "\n".join(blocks)


def parse_facts(record: NodeFacts) -> Facts:
    """Return the validated output of facts.py, or a record, as a model value."""
    provisioned = record if isinstance(record, NodeRecord) else None
    return Facts(
        hostname=record.hostname,
        python=record.python,
        cpu_model=record.cpu_model,
        flags=frozenset(record.flags),
        cores=cores_of(tuple(map(LOCATION, record.cpus))),
        memory_bytes=record.memory_bytes,
        shm_bytes=record.shm_bytes,
        libraries=record.libraries,
        packages=record.packages,
        interfaces={name: tuple(addresses) for name, addresses in record.interfaces.items()},
        mpi=record.mpi,
        machine=record.machine,
        libc=record.libc,
        gpus=tuple(Gpu(**gpu.model_dump()) for gpu in record.gpus),
        fingerprint=record.fingerprint,
        route=provisioned.route if provisioned else "",
        detours=provisioned.detours if provisioned else {},
        devices=tuple(Device(**device.model_dump()) for device in record.devices),
        fabrics=record.fabrics,
        proved={name: Proof(**proof.model_dump()) for name, proof in provisioned.proved.items()} if provisioned else {},
    )
