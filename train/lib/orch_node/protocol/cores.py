"""The cores of a node, and their division among its ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, groupby

from orch_node.protocol.node_names import grouped

# A rank gets cores of several NUMA nodes rather than fewer than this part of the cores that it could have.
MIN_LOCAL_SHARE = 7 / 8


@dataclass(frozen=True, order=True)
class Core:
    """A physical core and those of its hardware threads that orch may use."""

    numa: int
    socket: int
    core: int
    cpus: tuple[int, ...]


@cache  # a cluster has few kinds of nodes, and nodes of a kind have equal cores
def by_numa(cores: tuple[Core, ...]) -> tuple[tuple[Core, ...], ...]:
    """Return the cores of each NUMA node; the NUMA nodes of a socket follow each other."""
    groups = groupby(sorted(cores), key=lambda core: core.numa)
    return tuple(sorted((tuple(group) for _, group in groups), key=lambda group: (group[0].socket, group[0].numa)))


@cache
def default_ranks(cores: tuple[Core, ...]) -> int:
    """Return the number of ranks for --ppn auto: one for each NUMA node, or for each that has enough cores."""
    sizes = sorted(map(len, by_numa(cores)))
    used, ranks = max((size * (len(sizes) - index), len(sizes) - index) for index, size in enumerate(sizes))
    return ranks if used >= MIN_LOCAL_SHARE * (len(cores) - len(cores) % len(sizes)) else len(sizes)


@cache
def split(cores: tuple[Core, ...], ppn: int) -> tuple[tuple[Core, ...], ...]:
    """Return the cores of each rank: equal shares, within NUMA nodes unless that leaves many cores unused."""
    numa_nodes, largest = by_numa(cores), len(cores) // ppn
    share = next((size for size in range(largest, 0, -1) if sum(len(numa) // size for numa in numa_nodes) >= ppn), 0)
    if share < MIN_LOCAL_SHARE * largest:
        numa_nodes, share = (tuple(chain.from_iterable(numa_nodes)),), largest
    # A NUMA node gets its second rank when all others have their first one.
    shares = sorted((index, number) for number, numa in enumerate(numa_nodes) for index in range(len(numa) // share))
    in_numa_order = sorted((number, index) for index, number in shares[:ppn])
    return tuple(numa_nodes[number][index * share : (index + 1) * share] for number, index in in_numa_order)


@cache
def split_near(cores: tuple[Core, ...], devices: tuple[int | None, ...]) -> tuple[tuple[Core, ...], ...]:
    """Return the cores of each rank: equal shares of the NUMA node of its device.

    Args:
        cores: of the node.
        devices: the NUMA node of the device of each rank. If one is unknown or has too few cores, the result is that
            of split().
    """
    numa_nodes: dict[int | None, tuple[Core, ...]] = {group[0].numa: group for group in by_numa(cores)}
    share = min(len(numa_nodes.get(numa, ())) // count for numa, count in Counter(devices).items())
    if share == 0:
        return split(cores, len(devices))
    numbers = [(numa, devices[:rank].count(numa)) for rank, numa in enumerate(devices)]
    return tuple(numa_nodes[numa][number * share : (number + 1) * share] for numa, number in numbers)


def reported_cores(cpus: Iterable[Mapping[str, int]]) -> tuple[Core, ...]:
    """Return the cores of hardware threads as facts.py reports them."""
    return cores_of(tuple((cpu["numa"], cpu["socket"], cpu["core"], cpu["cpu"]) for cpu in cpus))


@cache
def cores_of(cpus: tuple[tuple[int, int, int, int], ...]) -> tuple[Core, ...]:
    """Return the cores of hardware threads, each given as (NUMA node, socket, core, CPU)."""
    threads_by_core = grouped(((numa, socket, core), cpu) for numa, socket, core, cpu in cpus)
    return tuple(
        Core(numa=numa, socket=socket, core=core, cpus=tuple(sorted(threads)))
        for (numa, socket, core), threads in sorted(threads_by_core.items())
    )
