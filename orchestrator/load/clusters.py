"""An inventory and the facts of its nodes -> Cluster."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orch_node.standalone import facts

from orchestrator.errors import RequestError
from orchestrator.load.fabric import asked_fabric
from orchestrator.load.facts import NodeFacts, NotWhatANodeSays, checked
from orchestrator.load.inventory import read_listing
from orchestrator.load.mpi import mpi_flavours
from orchestrator.load.records import OWN_STACK, parse_facts, recorded
from orchestrator.load.selection import select, title
from orchestrator.model.cluster import Cluster, Facts, Node
from orchestrator.paths import INVENTORY
from orchestrator.state import State

NO_HOSTS = "Write them below all: hosts: node1: {ansible_host: 10.0.0.1}."

INIT_FOLDER = Path("inventory")  # where `orch init` writes


def cluster(
    name: str, stack: str = OWN_STACK, *, nodes: str | None = None, exclude: str | None = None, spares: int = 0
) -> Cluster:
    """The chosen hosts of the inventory of that path or name, with what is known of them.

    Raises RequestError, and PlanError for more nodes than there are.
    """
    source = find_inventory(name)
    listing = read_listing(source)
    if not listing.hosts:
        raise RequestError(f"Inventory {source} has no hosts.", hint=NO_HOSTS)
    selection = select(source, listing, nodes=nodes, exclude=exclude, spares=spares)
    chosen = {host: listing.hosts[host] for host in (*selection.hosts, *selection.spares)}
    others = {host: its for host, its in chosen.items() if not is_this_machine(its)}
    found = recorded(State.of(source), others, listing.hosts, stack)
    here = {host: this_machine(host, its, stack) for host, its in chosen.items() if host not in others}
    known = found.nodes | here
    return Cluster(
        name=title(source),
        source=str(source) if "/" in str(source) else f"./{source}",  # as it is named again
        selection=selection,
        nodes=tuple(known[host] for host in chosen if host in known),
        mpi=next(iter(mpi_flavours(chosen)), None),
        fabric=asked_fabric(chosen),
        damaged=found.damaged,
        ssh_config="".join(f"{one}\n" for one in found.blocks.values()) or None,
    )


def find_inventory(name: str) -> Path:
    """Return the path of an inventory by its path, or by a bare name.

    A bare name is one of those that travel with orch, or that `orch init NAME` has written here. What else lies in the
    current folder may be a program that Ansible runs, and is named by its path.

    Raises:
        RequestError: if there is no such inventory.
    """
    bare = "/" not in name
    path = INVENTORY / name if bare else Path(name)
    if not name.isprintable():  # it goes into comments of files, and into the names of others
        raise RequestError(f"{name!r} is no name of an inventory.", hint="Give its path: inventory/prod, ./hosts.yml.")
    if name and name not in (".", "..") and path.exists():
        return path
    if bare and is_written_by_init(name):
        return INIT_FOLDER / name
    raise RequestError(f"There is no inventory '{name}'.", hint=way_to_inventory(name))


def is_written_by_init(name: str) -> bool:
    """Return whether inventory/NAME is a folder with hosts.yml, and with no program that Ansible would run."""
    folder = INIT_FOLDER / name
    if name in ("", ".", "..") or not (folder / "hosts.yml").is_file():
        return False
    return not any(path.is_file() and os.access(path, os.X_OK) for path in folder.rglob("*"))


def way_to_inventory(name: str) -> str:
    """What was meant, or how to make it."""
    found = [Path(name), Path("inventory") / name] if name and "/" not in name else []
    if near := [one for one in found if one.exists()]:
        return f"As a path: {near[0] if '/' in str(near[0]) else f'./{near[0]}'}."
    known = sorted(path.name for path in INVENTORY.iterdir() if path.is_dir())
    if similar := difflib.get_close_matches(name, known, n=1, cutoff=0.5):
        return f"Did you mean '{similar[0]}'?"
    written = re.fullmatch(r"(?:\./)?inventory/([A-Za-z0-9][\w.-]*)/?", name)
    own = written[1] if written else "NAME"
    return f"`orch init {own} HOST...` writes inventory/{own}. With orch come: {', '.join(known)}."


def is_this_machine(variables: Mapping[str, Any]) -> bool:
    return variables.get("ansible_connection") == "local"


def this_machine(name: str, variables: Mapping[str, Any], stack: str) -> Node:
    python = str(variables.get("orch_python", sys.executable))
    return Node(
        name=name,
        address=str(variables.get("ansible_host", "127.0.0.1")),
        python=python,
        facts=local_facts(python),
        repair="`orch setup`"
        if stack == OWN_STACK
        else f"`pip install` what `orch stacks requirements {stack}` prints",
    )


def local_facts(python: str) -> Facts:
    """Return the facts of this machine and of the environment that `python` belongs to.

    Raises:
        RequestError: if ORCH_CPU_ISA cannot be applied to this machine, or its facts contradict
            each other.
    """
    try:
        found = facts.gather(Path(python).parent.parent)
    except ValueError as error:
        raise RequestError(str(error), hint=f"Unset {facts.CPU_ISA}, or lower it.") from None
    try:
        return parse_facts(checked(NodeFacts, found, "the facts of this machine"))
    except NotWhatANodeSays as error:
        raise RequestError(error.message, hint="The kernel or a virtual machine reports wrong CPU flags.") from None
