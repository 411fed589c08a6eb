"""An inventory and the facts of its nodes -> Cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.cluster import Cluster, Core, Facts, Node
from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.facts import recorded_facts
from orchestrator.load.inventory import read_listing
from orchestrator.load.selection import select, title
from orchestrator.share import INVENTORY, TRAIN
from orchestrator.ssh_config import Connection
from orchestrator.state import State


def cluster(
    name: str, stack: str = "current", *, nodes: str | None = None, exclude: str | None = None
) -> Cluster:
    """The chosen hosts of the inventory of that path or name, with what is known of them.

    Raises RequestError, and PlanError for more nodes than there are.
    """
    source = find_inventory(name)
    listing = read_listing(source)
    if not listing.hosts:
        raise RequestError(f"Inventory {source} has no hosts.")
    selection = select(source, listing, nodes=nodes, exclude=exclude)
    found = (node(source, host, listing.hosts[host], stack) for host in selection.hosts)
    return Cluster(
        name=title(source),
        source=str(source),
        selection=selection,
        nodes=tuple(one for one in found if one),
    )


def find_inventory(name: str) -> Path:
    for path in (Path(name), Path("inventory") / name, INVENTORY / name):
        if path.exists():
            return path
    known = {path.name for path in INVENTORY.iterdir() if path.is_dir()}
    raise RequestError(f"There is no inventory '{name}'.", hint=did_you_mean(name, known))


def node(source: Path, name: str, variables: Mapping[str, Any], stack: str) -> Node | None:
    """A node with its facts; None if it is another machine and none are recorded."""
    if variables.get("ansible_connection") == "local":
        return this_machine(name, variables)
    record = recorded_facts(source, name)
    if record is None or "root" not in record:
        return None
    return Node(
        name=name,
        address=str(variables.get("orch_address") or record["address"]),
        python=f"{record['root']}/stacks/{stack}/bin/python",
        facts=parse_facts(record),
        via=("ssh", "-F", str(State.of(source).ssh_config), name),
        root=record["root"],
    )


def this_machine(name: str, variables: Mapping[str, Any]) -> Node:
    python = str(variables.get("orch_python", sys.executable))
    return Node(
        name=name,
        address=str(variables.get("ansible_host", "127.0.0.1")),
        python=python,
        facts=local_facts(python),
    )


def connections(source: Path, nodes: tuple[Node, ...]) -> tuple[Connection, ...]:
    """How Ansible reaches those nodes that are other machines, as it was recorded."""
    records = {node.name: recorded_facts(source, node.name) for node in nodes if not node.local}
    return tuple(
        Connection(node=name, **record["connection"]) for name, record in records.items() if record
    )


def local_facts(python: str) -> Facts:
    """Facts of this machine and of the environment that `python` belongs to."""
    prefix = Path(python).parent.parent
    command = [sys.executable, "-I", "-S", str(TRAIN / "facts.py"), str(prefix)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return parse_facts(json.loads(done.stdout))


def parse_facts(record: Mapping[str, Any]) -> Facts:
    """The record that train/facts.py prints, as a value."""
    cores: dict[tuple[int, int, int], list[int]] = {}
    for cpu in record["cpus"]:
        cores.setdefault((cpu["numa"], cpu["socket"], cpu["core"]), []).append(cpu["cpu"])
    return Facts(
        hostname=record["hostname"],
        python=record["python"],
        cpu_model=record["cpu_model"],
        flags=frozenset(record["flags"]),
        cores=tuple(
            Core(numa=numa, socket=socket, core=core, cpus=tuple(sorted(cpus)))
            for (numa, socket, core), cpus in sorted(cores.items())
        ),
        memory_bytes=record["memory_bytes"],
        shm_bytes=record["shm_bytes"],
        libraries=record["libraries"],
        packages=record["packages"],
        interfaces={name: tuple(found) for name, found in record["interfaces"].items()},
        mpiexec=record["mpiexec"],
        fingerprint=record.get("fingerprint", ""),
        route=record.get("route", ""),
        detours=record.get("detours", {}),
    )
