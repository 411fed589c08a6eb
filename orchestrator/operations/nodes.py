"""`orch nodes`: the recorded facts of an inventory's nodes. Touches no host."""

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
    """One row for each node, in the inventory's order; and what cannot be read, in words."""

    rows: list[dict[str, Any]]
    warnings: list[str]


def rows(inventory: str) -> Nodes:
    source = find_inventory(inventory)
    state = State.of(source)
    found = Nodes(rows=[], warnings=[])
    for name in read_inventory(source):
        try:
            record = read_record(state.record(name))
            found.rows.append(row(name, record) if record else unknown(name, "unknown"))
        except DamagedRecord as error:
            found.rows.append(unknown(name, "damaged"))
            found.warnings.append(error.describe())
    if any(one["state"] == "unknown" for one in found.rows):
        found.warnings.append(f"of unknown nodes nothing is recorded yet: orch provision {inventory}")
    return found


def unknown(name: str, state: str) -> dict[str, Any]:
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
        "missing": {name: what for name, what in facts.fabrics.items() if what},
        "fingerprint": record.fingerprint[:12],
    }


def fabrics(facts: Facts) -> str:
    """Those that the node has, with what was measured between it and the others."""
    have = [name for name, missing in facts.fabrics.items() if not missing]
    measured = {name: f" ({one.gbit:.3g} Gbit/s)" for name, one in facts.proved.items() if one.gbit}
    return ", ".join(f"{name}{measured.get(name, '')}" for name in have)
