"""List the nodes of an inventory, and run a user's commands on nodes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orch_node.protocol.record import DEFAULT_TARGET

from orchestrator.errors import ExecuteError, RequestError
from orchestrator.files import State
from orchestrator.load.clusters import find_inventory
from orchestrator.load.inventory import read_inventory
from orchestrator.load.records import DamagedRecord, read_record
from orchestrator.model.facts import Facts, describe_gpus
from orchestrator.model.hosts import Nodes, ranges
from orchestrator.operations.runs import find
from orchestrator.targets import registry
from orchestrator.targets.interface import LiveNode, NodeCommands, Notify

COLUMNS = (
    *("node", "state", "address", "interface", "cores", "numa", "memory", "gpus", "bf16", "python", "torch", "stack"),
    *("fabrics", "fingerprint"),
)
LIVE_COLUMNS = ("node", "state", "load", "free_memory", "cores", "runs")


def live_row(node: LiveNode) -> dict[str, Any]:
    """Return who uses a node; None for what is unknown."""
    usage = node.usage
    if usage is None:
        state = f"no response: {node.problem}" if node.queried else node.problem
        return {**dict.fromkeys(LIVE_COLUMNS), "node": node.name, "state": state}
    return {
        "node": node.name,
        "state": "busy" if usage.reserved else "free",
        "load": round(float(usage.load), 2),
        "free_memory": f"{usage.memory_available / 2**30:.1f} GiB",
        "cores": node.cores,
        "runs": [f"{claim.run} ({claim.describe()})" for claim in usage.reserved],
    }


def rows(inventory: str) -> list[dict[str, Any]]:
    """Return the recorded facts of all nodes of an inventory, in its order; None for what is unknown.

    Raises:
        RequestError: if there is no such inventory, or another tool manages the nodes.
    """
    if (target := registry.target_at(inventory)).name != DEFAULT_TARGET:
        target.live_nodes(inventory)
    source = find_inventory(inventory)
    state = State.of(source)
    return [recorded_row(name, state) for name in read_inventory(source)]


def recorded_row(name: str, state: State) -> dict[str, Any]:
    without_record = {**dict.fromkeys(COLUMNS), "node": name, "state": "unknown"}
    try:
        record = read_record(state.record(name))
    except DamagedRecord:
        return {**without_record, "state": "damaged"}
    if record is None:
        return without_record
    return {
        "node": name,
        "state": "verified" if record.verified else "not verified",
        "address": record.address or None,
        "interface": record.interface or None,
        "cores": len(record.cores),
        "numa": len(record.numa_nodes),
        "memory": f"{record.memory_bytes / 2**30:.1f} GiB",
        "gpus": describe_gpus(record.gpus) or None,
        "bf16": record.bf16 or "none",
        "python": record.python,
        "torch": record.packages.get("torch", "none"),
        "stack": record.stack or None,
        "fabrics": fabrics(record) or None,
        "nics": {name: asdict(nic) for name, nic in record.nics.items()},
        "devices": [asdict(device) for device in record.devices],
        "missing": {name: missing for name, missing in record.fabrics.items() if missing},
        "fingerprint": record.fingerprint[:12],
    }


def fabrics(facts: Facts) -> str:
    """Return the fabrics of the node with their measured bandwidth."""
    available = [name for name, missing in facts.fabrics.items() if not missing]
    bandwidth = {name: f" ({check.gbit:.3g} Gbit/s)" for name, check in facts.proved.items() if check.gbit}
    return ", ".join(f"{name}{bandwidth.get(name, '')}" for name in available)


def find_commands(name: str, nodes: Nodes | None, *, stack: str, runs_dir: Path, notify: Notify) -> NodeCommands:
    """Return the nodes of an inventory or a run on which commands can run.

    Args:
        name: the name or path of an inventory, the ID of a run, or `last`.
        nodes: selects some of the nodes; None means all.
        stack: the stack that provides Python; a run has its own.
        runs_dir: the folder of all run folders.
        notify: receives warnings.

    Raises:
        RequestError: if there is no such inventory, run or node, or another tool runs commands there.
    """
    target = registry.target_at(name)
    if target.name == DEFAULT_TARGET and names_run(name):
        return find(runs_dir, name, None, notify).commands(nodes)
    return target.commands(name, nodes, stack)


def names_run(name: str) -> bool:
    """Return whether a name means a run: `last`, or an ID, which begins with a digit, but not an inventory."""
    if name != "last":
        with suppress(RequestError):
            find_inventory(name)
            return False
    return name == "last" or (name[:1].isdigit() and "/" not in name)


def check_ends(ends: Mapping[str, int | ExecuteError]) -> None:
    """Check that a command has succeeded on all nodes.

    Raises:
        ExecuteError: if it has not; the message groups the nodes by their exit codes.
    """
    failures: dict[str, list[str]] = {}
    for node, end in ends.items():
        if isinstance(end, ExecuteError):
            failures.setdefault(end.message.removesuffix(".").removeprefix(node).lstrip(": "), []).append(node)
        elif end != 0:
            failures.setdefault(f"exit code {end}", []).append(node)
    if failures:
        groups = (f"{','.join(ranges(tuple(nodes)))}: {reason}" for reason, nodes in failures.items())
        hints = (end.hint for end in ends.values() if isinstance(end, ExecuteError))
        raise ExecuteError(f"{'; '.join(groups)}.", hint=next(hints, ""))
