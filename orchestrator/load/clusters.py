"""Build a Cluster from an inventory, the options that select its hosts, and the recorded facts of these.

Ansible matches the patterns of --nodes and --exclude. The variables that all hosts of a run must share are checked.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import sys
from collections import UserDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from orch_node import permissions
from orch_node.protocol.layout import check_flags
from orch_node.protocol.node_names import fold_by_text
from orch_node.standalone import facts
from pydantic import BaseModel, ConfigDict, NonNegativeFloat

from orchestrator.errors import PlanError, RequestError, did_you_mean
from orchestrator.files import INVENTORY, State
from orchestrator.load.files import parse_variable
from orchestrator.load.inventory import Listing, ansible_environment, cache_path, read_cache, read_listing, write_cache
from orchestrator.load.records import OWN_STACK, Records, load_records
from orchestrator.model.cluster import LOCAL, Cluster, Node, Selection
from orchestrator.model.facts import Facts, Gpu, ReportedDevice, join_threads
from orchestrator.model.hosts import Nodes, expand, fold, split_list
from orchestrator.model.printable import counted
from orchestrator.planning.launchers import IMPLEMENTATIONS

FABRIC, MPI, REQUIREMENTS, LIMITS = "orch_fabric", "orch_mpi", "orch_requirements", "orch_limits"
INIT_FOLDER = Path("inventory")  # where `orch init` writes
MAX_COMPARED = 500  # hosts that a misspelled name is compared with


def common_requirements(source: Path, hosts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the file of orch_requirements, relative to the inventory's folder; empty if it is not set.

    Raises:
        RequestError: if the hosts have different values.
    """
    file = " ".join(common_value(REQUIREMENTS, hosts, "all ranks have the same packages"))
    return str((source if source.is_dir() else source.parent) / file) if file else ""


def mpi_implementations(hosts: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return orch_mpi, one name or a list: the MPI implementations to install; the first one starts the ranks.

    Raises:
        RequestError: if a name is unknown, or the hosts have different values.
    """
    implementations = common_value(MPI, hosts, "one launcher starts all ranks")
    if unknown_names := [name for name in implementations if name not in IMPLEMENTATIONS]:
        hint = f"There are {', '.join(IMPLEMENTATIONS)}."
        raise RequestError(f"{next(iter(hosts))}: unknown {MPI} '{unknown_names[0]}'.", hint=hint)
    return implementations


def common_value(variable: str, hosts: Mapping[str, Mapping[str, Any]], reason: str) -> tuple[str, ...]:
    """Return the value of a variable that all hosts have, or the values of its list; none if it is not set.

    Raises:
        RequestError: if the hosts have different values.
    """
    values: dict[str, tuple[str, ...]] = {}
    for host, variables in hosts.items():
        value = variables.get(variable)
        values[host] = tuple(str(item) for item in (value if isinstance(value, list) else [value]) if item)
    if len(set(values.values())) > 1:
        texts = {host: " ".join(value) or "none" for host, value in values.items()}
        listing = "; ".join(f"{names}: {text}" for names, text in fold_by_text(texts))
        raise RequestError.about("unequal-variable", variable=variable, listing=listing, reason=reason)
    return next(iter(values.values()), ())


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
        raise RequestError.about("empty-inventory", source=source)
    selection = select(source, listing, nodes=nodes, exclude=exclude, spares=spares)
    selected = {host: listing.hosts[host] for host in (*selection.hosts, *selection.spares)}
    remote = {host: variables for host, variables in selected.items() if variables.get("ansible_connection") != "local"}
    records = load_records(State.of(source), remote, listing.hosts, stack) if remote else Records()
    local = {host: local_node(host, variables, stack) for host, variables in selected.items() if host not in remote}
    nodes_by_host = records.nodes | local
    return Cluster(
        name=title(source),
        source=str(source) if "/" in str(source) else f"./{source}",
        selection=selection,
        nodes=tuple(nodes_by_host[host] for host in selected if host in nodes_by_host),
        mpi=next(iter(mpi_implementations(selected)), None),
        fabric=" ".join(common_value(FABRIC, selected, "all ranks use one fabric")) or None,
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
        raise RequestError.about("inventory-name", name=name)
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
        permissions.check_entry(INIT_FOLDER)
        permissions.check_tree(folder)
    except permissions.UntrustedError as error:
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
        address=str(variables.get("ansible_host") or "127.0.0.1"),
        python=python,
        facts=local_facts(python),
        repair=f"`orch setup{'' if stack == OWN_STACK else f' --stack {stack}'}`",
    )


def local_facts(python: str) -> Facts:
    """Return the facts of this machine and of the environment that `python` belongs to.

    Raises:
        RequestError: if ORCH_CPU_ISA cannot be applied to this machine, or its facts contradict
            each other.
    """
    prefix = Path(python).parent.parent
    try:
        gathered: dict[str, Any] = facts.gather(prefix, for_plan=True)
        check_flags(gathered["flags"])
    except ValueError as error:
        raise RequestError.about("facts-of-this-machine", error=error) from None
    converted = {
        "flags": frozenset(gathered["flags"]),
        "cores": join_threads(gathered.pop("cpus")),
        "gpus": tuple(Gpu(**gpu) for gpu in gathered["gpus"]),
        "devices": tuple(ReportedDevice(**device) for device in gathered["devices"]),
        "fabrics": LocalFabrics(prefix, gathered["devices"]),
    }
    return Facts(**{**gathered, **converted})


@dataclass(eq=False)
class LocalFabrics(UserDict[str, str]):
    """The problems of each fabric on this machine, determined when they are first needed: fi_info takes 0.1 s."""

    prefix: Path
    devices: Any

    @cached_property
    def data(self) -> dict[str, str]:  # type: ignore[override]
        return facts.fabrics(facts.fi_info(self.prefix), self.devices)


class Limits(BaseModel):
    """The minimum resources of a node, as orch_limits sets them; an ini inventory contains the numbers as text."""

    model_config = ConfigDict(defer_build=True, extra="forbid")

    disk_gb: NonNegativeFloat = 5.0  # 0.7 for wheels, 2 for the environment, and the same again for an update
    memory_gb: NonNegativeFloat = 2.0
    shm_gb: NonNegativeFloat = 0.25  # for Intel MPI's segments of a few ranks
    skew_seconds: NonNegativeFloat = 5.0


def limits(host: str, variables: Mapping[str, Any]) -> Limits:
    """Return the minimum resources that the inventory requires of a node.

    Raises:
        RequestError: naming the key that is wrong.
    """
    return parse_variable(LIMITS, host, variables.get(LIMITS, {}), Limits)


def select(source: Path, listing: Listing, *, nodes: Nodes | None, exclude: str | None, spares: int = 0) -> Selection:
    """Return the hosts of a run.

    Args:
        source: the path of the inventory.
        listing: its hosts and groups.
        nodes: a number of hosts, names, ranges, groups or patterns; None means all hosts.
        exclude: names, ranges, groups or patterns.
        spares: how many spare hosts to take: those after a number of hosts, else the last ones.

    Raises:
        RequestError: if nothing matches, or no host remains.
        PlanError: if there are fewer hosts than requested.
    """
    matches = match(source, listing, "--nodes", nodes) if isinstance(nodes, str) else tuple(listing.hosts)
    excluded = match(source, listing, "--exclude", exclude) if exclude else ()
    hosts = tuple(name for name in matches if name not in set(excluded))
    if not hosts:
        total = counted(len(listing.hosts), "host")
        raise RequestError.about("empty-selection", nodes=nodes or "all", exclude=exclude, count=total, source=source)
    name = f"cluster '{title(source)}'"
    reason = f"all of {name}" if nodes is None else f"'{nodes}' of {name}"
    if isinstance(nodes, int):
        reason = f"the first of {len(hosts)} in {name}"
        check_number(nodes + spares, hosts, source)
        hosts = hosts[: nodes + spares]
    if spares >= len(hosts):
        raise RequestError.about("spares-of-nodes", spares=spares, nodes=counted(len(hosts), "node"))
    reason = f"{reason} without {fold(excluded)}" if excluded else reason
    return Selection(hosts=hosts[: len(hosts) - spares], reason=reason, spares=hosts[len(hosts) - spares :])


def check_number(count: int, hosts: tuple[str, ...], source: Path) -> None:
    """Raise PlanError if there are fewer than `count` hosts, or it is 0."""
    if not 1 <= count <= len(hosts):
        more = "select another inventory with --inventory" if title(source) == LOCAL else f"add hosts to {source}"
        size, most = counted(len(hosts), "node"), len(hosts)
        raise PlanError.about("too-many-nodes", count=count, title=title(source), size=size, most=most, more=more)


def title(source: Path) -> str:
    return source.stem if source.is_file() else source.name


def match(source: Path, listing: Listing, option: str, pattern: str) -> tuple[str, ...]:
    """Return the hosts that match a pattern, in its order.

    Raises:
        RequestError: if a part of it matches no host.
    """
    if pattern in listing.hosts:
        return (pattern,)
    # Next to the inventory's own cache, because starting Ansible takes half a second.
    inventory = cache_path(source)
    digest = hashlib.sha256(pattern.encode()).hexdigest()[:16]
    cache = inventory and inventory.with_suffix(f".{digest}.json")
    cached = read_cache(cache)
    if isinstance(cached, list) and all(isinstance(host, str) and host in listing.hosts for host in cached):
        return tuple(cached)
    hosts = tuple(dict.fromkeys(match_by_ansible(listing, option, pattern)))
    write_cache(cache, hosts)
    return hosts


def match_by_ansible(listing: Listing, option: str, pattern: str) -> Iterator[str]:
    # Ansible reads its configuration and creates its folder when it is imported.
    os.environ.update(ansible_environment())
    from ansible.inventory.manager import split_host_pattern

    texts = [text for item in split_list(pattern) for text in ([item] if "," in item else split_host_pattern(item))]
    try:
        parts = [name for text in texts for name in expand(text.strip(), lambda name: name in listing.groups)]
    except ValueError as error:
        raise RequestError(f"{option} {pattern}: {error}.", hint="Write ranges as node[1-3,7].") from None
    manager = ansible_inventory(listing)
    for part in parts:
        # Ansible itself only warns about a part that matches nothing.
        name = part.lstrip("!&")
        if part not in listing.hosts and not matching_hosts(manager, listing, [name]):
            hint = did_you_mean(part, [*listing.groups, *islice(listing.hosts, MAX_COMPARED)])
            raise RequestError(f"{option} {pattern}: {name} matches no host of the inventory.", hint=hint)
    yield from matching_hosts(manager, listing, parts)


def matching_hosts(manager: Any, listing: Listing, parts: list[str]) -> list[str]:
    """Return the hosts of patterns, without Ansible's implicit localhost.

    Raises:
        RequestError: if a pattern is invalid.
    """
    from ansible.errors import AnsibleError

    try:
        return [host.name for host in manager.get_hosts(parts) if host.name in listing.hosts]
    except AnsibleError as error:
        raise RequestError.about("invalid-pattern", pattern=",".join(parts), error=error) from None


def ansible_inventory(listing: Listing) -> Any:
    """Return the listing as Ansible's own object with hosts and groups, but without variables."""
    from ansible import constants
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader

    constants.HOST_PATTERN_MISMATCH = "ignore"  # match_by_ansible() raises an error
    manager = InventoryManager(loader=DataLoader(), parse=False)
    for name in listing.groups:
        manager.add_group(name)
    for host in listing.hosts:
        manager.add_host(host)
    for name, group in listing.groups.items():
        for host in group["hosts"]:
            manager.add_host(host, name)
        for child in group["children"]:
            manager.groups[name].add_child_group(manager.groups[child])
    manager.reconcile_inventory()
    return manager
