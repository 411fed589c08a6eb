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
from orchestrator.load.inventory import read_inventory
from orchestrator.share import INVENTORY, TRAIN


def cluster(name: str) -> Cluster:
    """The inventory of that path or name, with the facts of its nodes. Raises RequestError."""
    source = find_inventory(name)
    hosts = read_inventory(source)
    nodes = tuple(node(host, variables) for host, variables in hosts.items())
    if not nodes:
        raise RequestError(f"Inventory {source} has no hosts.")
    return Cluster(
        name=source.stem if source.is_file() else source.name, source=str(source), nodes=nodes
    )


def find_inventory(name: str) -> Path:
    for path in (Path(name), Path("inventory") / name, INVENTORY / name):
        if path.exists():
            return path
    known = {path.name for path in INVENTORY.iterdir() if path.is_dir()}
    raise RequestError(f"There is no inventory '{name}'.", hint=did_you_mean(name, known))


def node(name: str, variables: Mapping[str, Any]) -> Node:
    """Raises RequestError for a node of which no facts are recorded."""
    if variables.get("ansible_connection") != "local":
        raise RequestError(
            f"Nothing is known about {name}: it is not this machine, and this version trains here.",
            hint="Use --inventory local.",
        )
    python = str(variables.get("orch_python", sys.executable))
    return Node(
        name=name,
        address=str(variables.get("ansible_host", "127.0.0.1")),
        python=python,
        facts=local_facts(python),
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
    )
