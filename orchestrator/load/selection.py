"""--nodes and --exclude -> the hosts they mean. Patterns are Ansible's, matched by Ansible."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.load.ansible import ansible_environment
from orchestrator.load.inventory import Listing, cache_path, remember
from orchestrator.model.cluster import Selection, first_hosts
from orchestrator.model.hostlist import expand, fold

MENTIONED = 500  # hosts that a misspelt name is compared with


def select(source: Path, listing: Listing, *, nodes: str | None, exclude: str | None, spares: int = 0) -> Selection:
    """A number (the first ones), names, ranges, groups, patterns; None: all.

    Spares are the hosts that follow a number, or the last ones of what was named.

    Raises RequestError, and PlanError for more nodes than there are.
    """
    counted = nodes is None or nodes.isdecimal()
    wanted = tuple(listing.hosts) if counted else match(source, listing, "--nodes", str(nodes))
    dropped = match(source, listing, "--exclude", exclude) if exclude else ()
    left = tuple(name for name in wanted if name not in set(dropped))
    if not left:
        raise RequestError(
            f"--nodes {nodes or 'all'} --exclude {exclude} leaves none of the {len(listing.hosts)} hosts in {source}.",
            hint="Exclude fewer of them.",
        )
    name = f"cluster '{title(source)}'"
    why = f"all of {name}" if nodes is None else f"'{nodes}' of {name}"
    if nodes is not None and counted:
        why = f"the first of {len(left)} in {name}"
        count = int(nodes) + spares
        left = first_hosts(left, count, cluster=title(source), source=str(source))
    if spares >= len(left):
        raise RequestError(
            f"--spare-nodes {spares} leaves none of {len(left)} nodes to run on.",
            hint=f"Keep at most {len(left) - 1} spare, or add nodes.",
        )
    return Selection(
        hosts=left[: len(left) - spares],
        reason=f"{why} without {fold(dropped)}" if dropped else why,
        spares=left[len(left) - spares :],
    )


def title(source: Path) -> str:
    return source.stem if source.is_file() else source.name


def match(source: Path, listing: Listing, option: str, pattern: str) -> tuple[str, ...]:
    """The hosts of a pattern, in its order. Raises RequestError for a part that matches none."""
    if pattern in listing.hosts:
        return (pattern,)
    remembered = answer_path(source, pattern)
    if remembered and (known := recalled(remembered, listing)):
        return known
    found = tuple(dict.fromkeys(match_by_ansible(listing, option, pattern)))
    if remembered:
        remember(remembered, found)
    return found


def recalled(path: Path, listing: Listing) -> tuple[str, ...] | None:
    """None for what was not remembered, or cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    hosts = isinstance(found, list) and all(isinstance(one, str) and one in listing.hosts for one in found)
    return tuple(found) if hosts else None


def answer_path(source: Path, pattern: str) -> Path | None:
    """Beside the remembered inventory, and as long-lived: starting Ansible takes half a second."""
    inventory = cache_path(source)
    digest = hashlib.sha256(pattern.encode()).hexdigest()[:16]
    return inventory and inventory.with_suffix(f".{digest}.json")


def match_by_ansible(listing: Listing, option: str, pattern: str) -> Iterator[str]:
    # Ansible reads its configuration, and makes its folder, when it is imported.
    os.environ.update(ansible_environment())
    from ansible.inventory.manager import split_host_pattern

    parts: list[str] = [
        name for part in split_host_pattern(pattern) for name in expand(part, lambda name: name in listing.groups)
    ]
    manager = ansible_inventory(listing)
    for part in parts:
        # Ansible itself only warns of a part that matches nothing.
        if part not in listing.hosts and not hosts_of(manager, listing, [part.lstrip("!&")]):
            raise RequestError(
                f"{option} {pattern}: {part.lstrip('!&')} matches no host of the inventory.",
                hint=did_you_mean(part, [*listing.groups, *islice(listing.hosts, MENTIONED)]),
            )
    yield from hosts_of(manager, listing, parts)


def hosts_of(manager: Any, listing: Listing, parts: list[str]) -> list[str]:
    """Never Ansible's implicit localhost. Raises RequestError for what is no pattern."""
    from ansible.errors import AnsibleError

    try:
        return [host.name for host in manager.get_hosts(parts) if host.name in listing.hosts]
    except AnsibleError as error:
        raise RequestError(
            f"{','.join(parts)}: {error}", hint="Examples: 4; node[1-3],node7; a group of hosts."
        ) from None


def ansible_inventory(listing: Listing) -> Any:
    """The remembered inventory as Ansible's own object: its hosts and groups, no variables."""
    from ansible import constants
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader

    constants.HOST_PATTERN_MISMATCH = "ignore"  # we raise an error of our own
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
