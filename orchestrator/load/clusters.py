"""Builds a Cluster from an inventory and the recorded facts of its nodes."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from orch_node import trust
from orch_node.standalone import facts

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.launchers import DIALECTS
from orchestrator.load.facts import InvalidResponse, NodeFacts, validate
from orchestrator.load.inventory import read_listing
from orchestrator.load.records import OWN_STACK, Records, load_records, parse_facts, state_of
from orchestrator.load.selection import select, title
from orchestrator.model.cluster import Cluster, Facts, Node
from orchestrator.model.hostlist import Nodes
from orchestrator.paths import INVENTORY

FABRIC, MPI, REQUIREMENTS = "orch_fabric", "orch_mpi", "orch_requirements"


def requested_fabric(hosts: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return orch_fabric, or None if it is not set.

    Raises:
        RequestError: if the hosts have different values.
    """
    values = {host: (str(fabric),) if (fabric := variables.get(FABRIC)) else () for host, variables in hosts.items()}
    return next(iter(common_value(FABRIC, values, "all ranks use one fabric")), None)


def common_requirements(source: Path, hosts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the file of orch_requirements, relative to the inventory's folder; empty if it is not set.

    Raises:
        RequestError: if the hosts have different values.
    """
    values = {host: (str(file),) if (file := variables.get(REQUIREMENTS)) else () for host, variables in hosts.items()}
    file = next(iter(common_value(REQUIREMENTS, values, "all ranks have the same packages")), "")
    return str((source if source.is_dir() else source.parent) / file) if file else ""


def mpi_flavours(hosts: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return orch_mpi, one name or a list: the flavours of MPI to install; the first one starts the ranks.

    Raises:
        RequestError: if a name is unknown, or the hosts have different values.
    """
    values: dict[str, tuple[str, ...]] = {}
    for host, variables in hosts.items():
        value = variables.get(MPI)
        values[host] = tuple(str(name) for name in (value if isinstance(value, list) else [value]) if name)
        if unknown := [name for name in values[host] if name not in DIALECTS]:
            raise RequestError(
                f"{host}: unknown {MPI} '{unknown[0]}'; available are {', '.join(DIALECTS)}.",
                hint=did_you_mean(unknown[0], DIALECTS),
            )
    return common_value(MPI, values, "one launcher starts all ranks")


def common_value(variable: str, values: Mapping[str, tuple[str, ...]], reason: str) -> tuple[str, ...]:
    """Return the value that all hosts have.

    Raises:
        RequestError: if the hosts have different values.
    """
    if len(set(values.values())) > 1:
        listing = ", ".join(f"{host}: {' '.join(value) or 'none'}" for host, value in values.items())
        raise RequestError(
            f"{variable} differs between the hosts of a run ({listing}).", hint=f"Set it once for all hosts: {reason}."
        )
    return next(iter(values.values()), ())


NO_HOSTS = "Add hosts below all: hosts: node1: {ansible_host: 10.0.0.1}."

INIT_FOLDER = Path("inventory")  # where `orch init` writes


def cluster(
    name: str, stack: str = OWN_STACK, *, nodes: Nodes | None = None, exclude: str | None = None, spares: int = 0
) -> Cluster:
    """Load the selected hosts of an inventory and their recorded facts.

    Args:
        name: the path or the name of the inventory.
        stack: the stack whose Python runs the ranks.
        nodes: the --nodes option.
        exclude: the --exclude option.
        spares: the number of spare nodes.

    Raises:
        RequestError: if the inventory or the selection is wrong.
        PlanError: if more nodes are requested than there are.
    """
    source = find_inventory(name)
    listing = read_listing(source)
    if not listing.hosts:
        raise RequestError(f"Inventory {source} has no hosts.", hint=NO_HOSTS)
    selection = select(source, listing, nodes=nodes, exclude=exclude, spares=spares)
    selected = {host: listing.hosts[host] for host in (*selection.hosts, *selection.spares)}
    remote = {host: variables for host, variables in selected.items() if variables.get("ansible_connection") != "local"}
    records = load_records(state_of(source), remote, listing.hosts, stack) if remote else Records()
    local = {host: local_node(host, variables, stack) for host, variables in selected.items() if host not in remote}
    nodes_by_host = records.nodes | local
    return Cluster(
        name=title(source),
        source=str(source) if "/" in str(source) else f"./{source}",
        selection=selection,
        nodes=tuple(nodes_by_host[host] for host in selected if host in nodes_by_host),
        mpi=next(iter(mpi_flavours(selected)), None),
        fabric=requested_fabric(selected),
        requirements=common_requirements(source, selected),
        damaged=records.damaged,
        ssh_config="".join(f"{block}\n" for block in records.ssh_blocks.values()) or None,
    )


def hosts_outside(name: str, nodes: Nodes, exclude: str | None) -> tuple[str, ...]:
    """Return the hosts of an inventory that --nodes and --exclude do not select."""
    source = find_inventory(name)
    listing = read_listing(source)
    selected = select(source, listing, nodes=nodes, exclude=exclude).hosts
    return tuple(host for host in listing.hosts if host not in selected)


def find_inventory(name: str) -> Path:
    """Return the path of an inventory by its path, or by a bare name.

    A bare name is that of an inventory of orch's own, or of one that `orch init NAME` wrote in the current folder. Any
    other file there could be a program that Ansible would run, so the user must give its path.

    Raises:
        RequestError: if there is no such inventory, or a bare name is that of one that another user could have written.
    """
    bare = "/" not in name
    path = INVENTORY / name if bare else Path(name)
    if not name.isprintable():  # it is written into comments and file names
        raise RequestError(
            f"{name!r} is not the name of an inventory.", hint="Give its path: inventory/prod, ./hosts.yml."
        )
    if name and name not in (".", "..") and path.exists():
        return path
    if bare and is_written_by_init(name):
        check_trusted(INIT_FOLDER / name)
        return INIT_FOLDER / name
    raise RequestError(f"There is no inventory '{name}'.", hint=inventory_hint(name))


def is_written_by_init(name: str) -> bool:
    """Return whether inventory/NAME is a folder with hosts.yml, and with no program that Ansible would run."""
    folder = INIT_FOLDER / name
    if name in ("", ".", "..") or not (folder / "hosts.yml").is_file():
        return False
    return not any(path.is_file() and os.access(path, os.X_OK) for path in folder.rglob("*"))


def check_trusted(folder: Path) -> None:
    """Raise RequestError if another user could have written an inventory: Ansible runs the lookups in it."""
    try:
        trust.check_entry(INIT_FOLDER)
        trust.check_tree(folder)
    except trust.UntrustedError as error:
        raise RequestError(f"{error}.", hint=f"If you trust its author, name the path: {folder}.") from None


def inventory_hint(name: str) -> str:
    """Return which inventory the user may have meant, or how to create it."""
    candidates = [Path(name), Path("inventory") / name] if name and "/" not in name else []
    if path := next((path for path in candidates if path.exists()), None):
        return f"As a path: {path if '/' in str(path) else f'./{path}'}."
    names = sorted(path.name for path in INVENTORY.iterdir() if path.is_dir())
    if similar := difflib.get_close_matches(name, names, n=1, cutoff=0.5):
        return f"Did you mean '{similar[0]}'?"
    match = re.fullmatch(r"(?:\./)?inventory/([A-Za-z0-9][\w.-]*)/?", name)
    new = match[1] if match else "NAME"
    return f"`orch init {new} HOST...` creates inventory/{new}. Included in orch: {', '.join(names)}."


def local_node(name: str, variables: Mapping[str, Any], stack: str) -> Node:
    python = str(variables.get("orch_python", sys.executable))
    return Node(
        name=name,
        address=str(variables.get("ansible_host", "127.0.0.1")),
        python=python,
        facts=local_facts(python),
        repair="`orch setup`"
        if stack == OWN_STACK
        else f"`orch stacks requirements {stack} > requirements.txt`, then `pip install -r requirements.txt`",
    )


def local_facts(python: str) -> Facts:
    """Return the facts of this machine and of the environment that `python` belongs to.

    Raises:
        RequestError: if ORCH_CPU_ISA cannot be applied to this machine, or its facts contradict
            each other.
    """
    prefix = Path(python).parent.parent
    try:
        gathered = facts.gather(prefix, query_fabrics=False)
    except ValueError as error:
        raise RequestError(str(error), hint=f"Unset {facts.CPU_ISA}, or set it to a lower level.") from None
    try:
        parsed = parse_facts(validate(NodeFacts, gathered, "the facts of this machine"))
    except InvalidResponse as error:
        raise RequestError(error.message, hint="The kernel or a virtual machine reports wrong CPU flags.") from None
    return replace(parsed, fabrics=LocalFabrics(prefix, gathered["devices"]))


@dataclass(eq=False)
class LocalFabrics(Mapping[str, str]):
    """The problems of each fabric on this machine, determined when they are first needed: fi_info takes 0.1 s."""

    prefix: Path
    devices: Any

    @cached_property
    def _missing(self) -> dict[str, str]:
        return facts.fabrics(facts.fi_info(self.prefix), self.devices)

    def __getitem__(self, name: str) -> str:
        return self._missing[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._missing)

    def __len__(self) -> int:
        return len(self._missing)
