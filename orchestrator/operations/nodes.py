"""List the recorded facts of an inventory's nodes, without connecting to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.load.clusters import find_inventory
from orchestrator.load.facts import DamagedRecord, NodeRecord, read_record
from orchestrator.load.inventory import read_inventory
from orchestrator.load.records import parse_facts
from orchestrator.model.cluster import Facts
from orchestrator.state import State

COLUMNS = (
    "node",
    "state",
    "address",
    "interface",
    "cores",
    "numa",
    "memory",
    "bf16",
    "python",
    "torch",
    "stack",
    "fabrics",
    "fingerprint",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The table of `orch nodes`."""

    rows: list[dict[str, Any]]  # one per node, in the inventory's order
    warnings: list[str]  # records that cannot be read


def rows(inventory: str) -> Nodes:
    """Return the recorded facts of all nodes of an inventory."""
    source = find_inventory(inventory)
    state = State.of(source)
    nodes = Nodes(rows=[], warnings=[])
    for name in read_inventory(source):
        try:
            record = read_record(state.record(name))
            nodes.rows.append(row(name, record) if record else row_without_record(name, "unknown"))
        except DamagedRecord as error:
            nodes.rows.append(row_without_record(name, "damaged"))
            nodes.warnings.append(error.describe())
    if any(node["state"] == "unknown" for node in nodes.rows):
        nodes.warnings.append(f"nothing is recorded about unknown nodes yet; run: orch provision {inventory}")
    return nodes


def row_without_record(name: str, state: str) -> dict[str, Any]:
    return {**dict.fromkeys(COLUMNS, "-"), "node": name, "state": state}


def row(name: str, record: NodeRecord) -> dict[str, Any]:
    facts = parse_facts(record)
    return {
        "node": name,
        "state": "verified" if record.verified else "not verified",
        "address": record.address or "-",
        "interface": record.interface or "-",
        "cores": len(facts.cores),
        "numa": len(facts.numa_nodes),
        "memory": f"{facts.memory_bytes / 2**30:.1f} GiB",
        "bf16": facts.bf16 or "none",
        "python": facts.python,
        "torch": facts.packages.get("torch", "none"),
        "stack": record.stack or "-",
        "fabrics": fabrics(facts) or "-",
        "nics": {name: nic.model_dump() for name, nic in record.nics.items()},
        "devices": [device.model_dump() for device in record.devices],
        "missing": {name: missing for name, missing in facts.fabrics.items() if missing},
        "fingerprint": record.fingerprint[:12],
    }


def fabrics(facts: Facts) -> str:
    """Return the fabrics of the node with their measured bandwidth."""
    available = [name for name, missing in facts.fabrics.items() if not missing]
    bandwidth = {name: f" ({check.gbit:.3g} Gbit/s)" for name, check in facts.proved.items() if check.gbit}
    return ", ".join(f"{name}{bandwidth.get(name, '')}" for name in available)
