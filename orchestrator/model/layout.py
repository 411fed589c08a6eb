"""Which rank runs on which cores of which node, and with how many threads."""

from __future__ import annotations

from dataclasses import dataclass

from orch_node.protocol.cores import split
from orch_node.protocol.record import Place as Place

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The places of all ranks, in the order of their ranks."""

    places: tuple[Place, ...]

    @property
    def world_size(self) -> int:
        return len(self.places)

    def on(self, node: str) -> tuple[Place, ...]:
        return tuple(place for place in self.places if place.node == node)

    def by_node(self) -> dict[str, tuple[Place, ...]]:
        """Node -> its places, for all nodes at once."""
        found: dict[str, list[Place]] = {}
        for place in self.places:
            found.setdefault(place.node, []).append(place)
        return {node: tuple(places) for node, places in found.items()}

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place.node for place in self.places))


Share = tuple[tuple[int, ...], tuple[int, ...]]  # of a rank: CPUs to compute on, and for workers


def lay_out(nodes: tuple[Node, ...], ppn: int | None, workers: int = 0) -> Layout:
    """Spread ranks over the nodes; `ppn` None takes one rank for each NUMA node.

    The last `workers` cores of each rank are left to oneCCL. Raises PlanError if a node has fewer
    physical cores than ranks, or a rank no core to compute on.
    """
    places: list[Place] = []
    kinds: dict[int, tuple[Share, ...]] = {}
    for node in nodes:
        kind = id(node.facts.cores)  # thousands of nodes of one kind share one tuple of cores
        if kind not in kinds:
            kinds[kind] = shares_of(node, ppn, workers)
        first = len(places)
        places.extend(
            Place(
                rank=first + local_rank,
                node=node.name,
                local_rank=local_rank,
                local_world_size=len(kinds[kind]),
                cpus=cpus,
                threads=len(cpus),
                worker_cpus=worker_cpus,
            )
            for local_rank, (cpus, worker_cpus) in enumerate(kinds[kind])
        )
    return Layout(places=tuple(places))


def alike(*, word: str, nodes: int, ppn: int, threads: int) -> Layout:
    """Equal nodes, `word`-0 and so on; which CPUs each has, only it will know."""
    return Layout(
        places=tuple(
            Place(
                rank=node * ppn + local,
                node=f"{word}-{node}",
                local_rank=local,
                local_world_size=ppn,
                cpus=(),
                threads=threads,
            )
            for node in range(nodes)
            for local in range(ppn)
        )
    )


def shares_of(node: Node, ppn: int | None, workers: int) -> tuple[Share, ...]:
    """Raises PlanError."""
    check_ranks(node, ppn)
    shares = split(node.facts.cores, ppn or len(node.facts.numa_nodes))
    check_workers(node, len(shares[0]), workers)
    first_cpus = (tuple(core.cpus[0] for core in cores) for cores in shares)
    return tuple((cpus[: len(cpus) - workers], cpus[len(cpus) - workers :]) for cpus in first_cpus)


def check_workers(node: Node, cores: int, workers: int) -> None:
    if not 0 <= workers < cores:
        raise PlanError(
            f"--ccl-workers {workers}, but a rank on {node.name} has {cores} core{'s' * (cores != 1)} in all.",
            hint=f"Use 0 to {cores - 1}, or fewer ranks with --ppn.",
        )


def check_ranks(node: Node, ppn: int | None) -> None:
    """Raises PlanError if a node has fewer physical cores than ranks."""
    cores = len(node.facts.cores)
    if ppn is None or 1 <= ppn <= cores:
        return
    raise PlanError(
        f"--ppn {ppn}, but {node.name} has {cores} physical core{'s' * (cores != 1)} that orch may use.",
        hint=f"Use --ppn 1 to {cores}; with --ppn auto it is {len(node.facts.numa_nodes)} here, "
        "one rank for each NUMA node. --exclude leaves a node out.",
    )


def unused_cores(node: Node, places: tuple[Place, ...]) -> int:
    """Physical cores of the node that none of its ranks uses: they do not divide evenly."""
    used = sum(len(place.cpus) + len(place.worker_cpus) for place in places)
    return len(node.facts.cores) - used
