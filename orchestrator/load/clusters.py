"""An inventory and the facts of its nodes -> Cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.facts import NodeFacts, NodeRecord, checked, read_record
from orchestrator.load.inventory import is_template, read_listing
from orchestrator.load.mpi import mpi_flavours
from orchestrator.load.selection import select, title
from orchestrator.model.cluster import Cluster, Core, Facts, Node
from orchestrator.model.ssh_options import SshOptions
from orchestrator.paths import INVENTORY, STANDALONE
from orchestrator.state import State

OWN_STACK = "current"  # what `make setup` installs


def cluster(
    name: str,
    stack: str = OWN_STACK,
    *,
    nodes: str | None = None,
    exclude: str | None = None,
    spares: int = 0,
) -> Cluster:
    """The chosen hosts of the inventory of that path or name, with what is known of them.

    Raises RequestError, and PlanError for more nodes than there are.
    """
    source = find_inventory(name)
    listing = read_listing(source)
    if not listing.hosts:
        raise RequestError(f"Inventory {source} has no hosts.")
    selection = select(source, listing, nodes=nodes, exclude=exclude, spares=spares)
    state = State.of(source)
    hosts = (*selection.hosts, *selection.spares)
    found = (node(state, host, listing.hosts[host], stack) for host in hosts)
    return Cluster(
        name=title(source),
        source=str(source),
        selection=selection,
        nodes=tuple(one for one in found if one),
        mpi=next(iter(mpi_flavours({host: listing.hosts[host] for host in hosts})), None),
    )


def find_inventory(name: str) -> Path:
    """A bare name is one of those that travel with orch: what lies in the current folder, and may
    be a program that Ansible runs, is named by its path. Raises RequestError."""
    bare = "/" not in name
    path = INVENTORY / name if bare else Path(name)
    if not name.isprintable():  # it goes into comments of files, and into the names of others
        raise RequestError(f"{name!r} is no name of an inventory.")
    if name and name not in (".", "..") and path.exists():
        return path
    known = {path.name for path in INVENTORY.iterdir() if path.is_dir()}
    near = [one for one in (Path(name), Path("inventory") / name) if bare and name and one.exists()]
    hint = f"As a path: {near[0] if '/' in str(near[0]) else f'./{near[0]}'}." if near else ""
    raise RequestError(f"There is no inventory '{name}'.", hint=hint or did_you_mean(name, known))


def node(state: State, name: str, variables: Mapping[str, Any], stack: str) -> Node | None:
    """A node with its facts; None if it is another machine and none are recorded."""
    if variables.get("ansible_connection") == "local":
        return this_machine(name, variables, stack)
    record = read_record(state.record(name))
    if record is None or record.root is None:
        return None
    return Node(
        name=name,
        address=address_of(name, variables, record),
        python=f"{record.root}/stacks/{stack}/bin/python",
        facts=parse_facts(record),
        via=("ssh", "-F", str(state.ssh_config), "--", name),
        root=record.root,
        repair="`orch provision`" + ("" if stack == OWN_STACK else f" with --stack {stack}"),
    )


def address_of(name: str, variables: Mapping[str, Any], record: NodeRecord) -> str:
    """Where the other nodes reach it: as the inventory says, unless in words that Ansible alone can
    render; then, as it was seen. Raises RequestError."""
    said = str(variables.get("orch_address") or "")
    if said and not is_template(said):
        return said
    if record.address is None:
        raise RequestError(f"The record of {name} has no address.", hint="Run `orch provision`.")
    return record.address


def this_machine(name: str, variables: Mapping[str, Any], stack: str) -> Node:
    python = str(variables.get("orch_python", sys.executable))
    return Node(
        name=name,
        address=str(variables.get("ansible_host", "127.0.0.1")),
        python=python,
        facts=local_facts(python),
        repair="`make setup`"
        if stack == OWN_STACK
        else f"`pip install` what `orch stacks requirements {stack}` prints",
    )


def connections(source: Path) -> tuple[SshOptions, ...]:
    """How Ansible reaches the nodes that are other machines, for all that have a record."""
    records = ((path.stem, read_record(path)) for path in State.of(source).records())
    return tuple(
        SshOptions(node=name, **record.connection.model_dump())
        for name, record in records
        if record and record.connection
    )


def local_facts(python: str) -> Facts:
    """Facts of this machine and of the environment that `python` belongs to."""
    prefix = Path(python).parent.parent
    command = [sys.executable, "-I", "-S", str(STANDALONE / "facts.py"), str(prefix)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return parse_facts(checked(NodeFacts, json.loads(done.stdout), "the facts of this machine"))


def parse_facts(record: NodeFacts) -> Facts:
    """The record that facts.py prints, as a value."""
    recorded = record if isinstance(record, NodeRecord) else None
    return Facts(
        hostname=record.hostname,
        python=record.python,
        cpu_model=record.cpu_model,
        flags=frozenset(record.flags),
        cores=cores_of(tuple((one.numa, one.socket, one.core, one.cpu) for one in record.cpus)),
        memory_bytes=record.memory_bytes,
        shm_bytes=record.shm_bytes,
        libraries=record.libraries,
        packages=record.packages,
        interfaces={name: tuple(found) for name, found in record.interfaces.items()},
        mpi=mpi_of(record),
        gpus=record.gpus,
        fingerprint=record.fingerprint,
        route=recorded.route if recorded else "",
        detours=recorded.detours if recorded else {},
    )


def mpi_of(record: NodeFacts) -> Mapping[str, str]:
    """Records of before there was a choice know Intel's mpiexec alone."""
    if isinstance(record, NodeRecord) and record.mpiexec and not record.mpi:
        return {"intel": record.mpiexec}
    return record.mpi


@cache  # a thousand nodes of one kind have one tuple of cores
def cores_of(cpus: tuple[tuple[int, int, int, int], ...]) -> tuple[Core, ...]:
    """(NUMA node, socket, core, hardware thread) -> the cores."""
    found: dict[tuple[int, int, int], list[int]] = {}
    for numa, socket, core, cpu in cpus:
        found.setdefault((numa, socket, core), []).append(cpu)
    return tuple(
        Core(numa=numa, socket=socket, core=core, cpus=tuple(sorted(threads)))
        for (numa, socket, core), threads in sorted(found.items())
    )
