"""The placement of ranks on the cores of nodes."""

from __future__ import annotations

from dataclasses import dataclass

from orch_node.protocol.cores import default_ranks, split, split_near
from orch_node.protocol.record import RankPlacement as RankPlacement

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Node
from orchestrator.model.printable import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The places of all ranks, in rank order."""

    rank_places: tuple[RankPlacement, ...]

    @property
    def world_size(self) -> int:
        return len(self.rank_places)

    def by_node(self) -> dict[str, tuple[RankPlacement, ...]]:
        """Return the places of every node."""
        by_name: dict[str, list[RankPlacement]] = {}
        for rank_place in self.rank_places:
            by_name.setdefault(rank_place.node, []).append(rank_place)
        return {node: tuple(node_places) for node, node_places in by_name.items()}

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rank_place.node for rank_place in self.rank_places))


Share = tuple[tuple[int, ...], tuple[int, ...]]  # a rank's CPUs for computing, and for oneCCL's workers


def lay_out(nodes: tuple[Node, ...], ppn: int | None, workers: int = 0, *, on_gpus: bool = False) -> Layout:
    """Distribute ranks over the nodes.

    Args:
        nodes: the nodes, in rank order.
        ppn: ranks per node; None means one per NUMA node, or per GPU.
        workers: how many of each rank's last cores are reserved for oneCCL.
        on_gpus: whether each rank uses a GPU, and runs on cores near it.

    Raises:
        PlanError: if a node has fewer physical cores than ranks, or a rank has no core left to compute on.
    """
    rank_places: list[RankPlacement] = []
    kinds: dict[tuple[int, tuple[int | None, ...]], tuple[Share, ...]] = {}
    for node in nodes:
        devices = tuple(gpu.numa for gpu in node.facts.gpus) if on_gpus else ()
        kind = (id(node.facts.cores), devices)  # thousands of equal nodes share one tuple of cores
        if kind not in kinds:
            kinds[kind] = shares_of(node, ppn, workers, devices)
        first = len(rank_places)
        rank_places.extend(
            RankPlacement(
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
    return Layout(rank_places=tuple(rank_places))


def uniform_layout(*, prefix: str, nodes: int, ppn: int, threads: int) -> Layout:
    """Return a layout of equal nodes PREFIX-0, PREFIX-1, ...; each node chooses the CPUs of its ranks."""
    return Layout(
        rank_places=tuple(
            RankPlacement(
                rank=node * ppn + local,
                node=f"{prefix}-{node}",
                local_rank=local,
                local_world_size=ppn,
                cpus=(),
                threads=threads,
            )
            for node in range(nodes)
            for local in range(ppn)
        )
    )


def shares_of(node: Node, ppn: int | None, workers: int, devices: tuple[int | None, ...] = ()) -> tuple[Share, ...]:
    """Return the cores of each rank of a node, near its device if `devices` has the NUMA node of each.

    Raises:
        PlanError: if there are too few cores.
    """
    cores = node.facts.cores
    if ppn is None and devices:
        ppn = len(devices)
    if ppn is not None and not 1 <= ppn <= len(cores):
        raise PlanError(
            f"--ppn {ppn}, but {node.name} has {counted(len(cores), 'physical core')} that orch may use.",
            hint=f"Use --ppn {'1' if len(cores) == 1 else f'1 to {len(cores)}'}; --ppn auto means "
            f"{default_ranks(cores)} on this node, one rank per NUMA node. --exclude excludes a node.",
        )
    ranks = ppn or default_ranks(cores)
    # Ranks beyond the number of devices share them.
    near = tuple(devices[rank % len(devices)] for rank in range(ranks) if devices)
    shares = split_near(cores, near) if near else split(cores, ranks)
    if workers:
        check_workers(node, len(shares[0]), workers)
    first_cpus = (tuple(core.cpus[0] for core in cores) for cores in shares)
    return tuple((cpus[: len(cpus) - workers], cpus[len(cpus) - workers :]) for cpus in first_cpus)


def check_workers(node: Node, cores: int, workers: int) -> None:
    if not 0 <= workers < cores:
        raise PlanError(
            f"--ccl-workers {workers}, but a rank on {node.name} has only {counted(cores, 'core')}.",
            hint=f"Use 0 to {cores - 1}, or fewer ranks with --ppn.",
        )


def unused_cores(node: Node, rank_places: tuple[RankPlacement, ...]) -> int:
    """Return how many physical cores of the node no rank uses because they cannot be divided evenly."""
    used = sum(len(rank_place.cpus) + len(rank_place.worker_cpus) for rank_place in rank_places)
    return len(node.facts.cores) - used
