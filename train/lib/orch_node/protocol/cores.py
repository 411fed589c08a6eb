"""The cores of a node, and their division among its ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import groupby


@dataclass(frozen=True, order=True)
class Core:
    """A physical core and those of its hardware threads that orch may use."""

    numa: int
    socket: int
    core: int
    cpus: tuple[int, ...]


@cache  # a cluster has few kinds of nodes, and nodes of a kind have equal cores
def by_numa(cores: tuple[Core, ...]) -> tuple[tuple[Core, ...], ...]:
    """Return the cores of each NUMA node."""
    return tuple(tuple(group) for _, group in groupby(sorted(cores), key=lambda core: core.numa))


@cache
def split(cores: tuple[Core, ...], ppn: int) -> tuple[tuple[Core, ...], ...]:
    """Return the cores of each rank: equal shares, within NUMA nodes if possible."""
    numa_nodes = by_numa(cores)
    if ppn % len(numa_nodes) == 0:
        per_numa = ppn // len(numa_nodes)
        share = min(len(numa) // per_numa for numa in numa_nodes)
        if share:
            return tuple(numa[index * share : (index + 1) * share] for numa in numa_nodes for index in range(per_numa))
    share = len(cores) // ppn
    ordered = tuple(sorted(cores))
    return tuple(ordered[index * share : (index + 1) * share] for index in range(ppn))


@cache
def cores_of(cpus: tuple[tuple[int, int, int, int], ...]) -> tuple[Core, ...]:
    """Return the cores of hardware threads, each given as (NUMA node, socket, core, CPU)."""
    threads_by_core: dict[tuple[int, int, int], list[int]] = {}
    for numa, socket, core, cpu in cpus:
        threads_by_core.setdefault((numa, socket, core), []).append(cpu)
    return tuple(
        Core(numa=numa, socket=socket, core=core, cpus=tuple(sorted(threads)))
        for (numa, socket, core), threads in sorted(threads_by_core.items())
    )
