"""Resolves --nodes and --exclude to hosts; Ansible matches its patterns."""

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
from orchestrator.load.inventory import Listing, cache_path, write_cache
from orchestrator.model.cluster import Selection, first_hosts
from orchestrator.model.hostlist import NodeCount, NodePattern, Nodes, expand, fold, split_list
from orchestrator.model.printable import counted

MAX_COMPARED = 500  # hosts that a misspelled name is compared with


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
    is_pattern = isinstance(nodes, NodePattern)
    matches = match(source, listing, "--nodes", str(nodes)) if is_pattern else tuple(listing.hosts)
    excluded = match(source, listing, "--exclude", exclude) if exclude else ()
    hosts = tuple(name for name in matches if name not in set(excluded))
    if not hosts:
        raise RequestError(
            f"--nodes {nodes or 'all'} --exclude {exclude} selects none of {counted(len(listing.hosts), 'host')} "
            f"in {source}.",
            hint="Exclude fewer hosts.",
        )
    name = f"cluster '{title(source)}'"
    reason = f"all of {name}" if nodes is None else f"'{nodes}' of {name}"
    if isinstance(nodes, NodeCount):
        reason = f"the first of {len(hosts)} in {name}"
        hosts = first_hosts(hosts, nodes.number + spares, cluster=title(source), source=str(source))
    if spares >= len(hosts):
        raise RequestError(
            f"--spare-nodes {spares} leaves none of {counted(len(hosts), 'node')} to run on.",
            hint=f"Use --spare-nodes {len(hosts) - 1} or less, or add nodes.",
        )
    return Selection(
        hosts=hosts[: len(hosts) - spares],
        reason=f"{reason} without {fold(excluded)}" if excluded else reason,
        spares=hosts[len(hosts) - spares :],
    )


def title(source: Path) -> str:
    return source.stem if source.is_file() else source.name


def match(source: Path, listing: Listing, option: str, pattern: str) -> tuple[str, ...]:
    """Return the hosts that match a pattern, in its order.

    Raises:
        RequestError: if a part of it matches no host.
    """
    if pattern in listing.hosts:
        return (pattern,)
    cache = match_cache_path(source, pattern)
    if cache and (cached := read_cached_hosts(cache, listing)):
        return cached
    hosts = tuple(dict.fromkeys(match_by_ansible(listing, option, pattern)))
    if cache:
        write_cache(cache, hosts)
    return hosts


def read_cached_hosts(path: Path, listing: Listing) -> tuple[str, ...] | None:
    """Return the cached hosts; None if there are none, or they cannot be read."""
    try:
        hosts = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    is_valid = isinstance(hosts, list) and all(isinstance(host, str) and host in listing.hosts for host in hosts)
    return tuple(hosts) if is_valid else None


def match_cache_path(source: Path, pattern: str) -> Path | None:
    """Return the cache file of a pattern, next to that of the inventory; starting Ansible takes half a second."""
    inventory = cache_path(source)
    digest = hashlib.sha256(pattern.encode()).hexdigest()[:16]
    return inventory and inventory.with_suffix(f".{digest}.json")


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
        if part not in listing.hosts and not matching_hosts(manager, listing, [part.lstrip("!&")]):
            raise RequestError(
                f"{option} {pattern}: {part.lstrip('!&')} matches no host of the inventory.",
                hint=did_you_mean(part, [*listing.groups, *islice(listing.hosts, MAX_COMPARED)]),
            )
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
        raise RequestError(
            f"{','.join(parts)}: {error}", hint="Examples: 4; node[1-3],node7; a group of hosts."
        ) from None


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
