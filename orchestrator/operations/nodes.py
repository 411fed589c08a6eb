"""`orch nodes`: the recorded facts of an inventory's nodes. Touches no host."""

from __future__ import annotations

from typing import Any

from orchestrator.load.clusters import find_inventory, parse_facts
from orchestrator.load.facts import NodeRecord, recorded_facts
from orchestrator.load.inventory import read_inventory

COLUMNS = ("node", "state", "address", "interface", "cores", "numa", "memory", "bf16", "python",
           "torch", "stack", "fingerprint")  # fmt: skip


def rows(inventory: str) -> list[dict[str, Any]]:
    """One row for each node, in the inventory's order."""
    source = find_inventory(inventory)
    return [row(name, recorded_facts(source, name)) for name in read_inventory(source)]


def row(name: str, record: NodeRecord | None) -> dict[str, Any]:
    if record is None:
        return {**dict.fromkeys(COLUMNS, "-"), "node": name, "state": "unknown"}
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
        "fingerprint": record.fingerprint[:12],
    }
