"""layout.json: which rank runs on which cores of which node, and what it finds there."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from orch_node.protocol import files, values

SCHEMA = 1


@dataclass(frozen=True)
class Placement:
    """One rank. `cpus`: where it is pinned, none where it is not; `worker_cpus`: those set apart
    for its oneCCL workers; `env`: variables of its own."""

    rank: int
    node: str
    local_rank: int
    local_world_size: int
    cpus: tuple[int, ...]
    worker_cpus: tuple[int, ...]
    threads: int
    env: dict[str, str]


@dataclass(frozen=True)
class NodeEntry:
    """One node: its name for itself, its torch, and its address and interface among the others,
    where they are known. `env`: variables of all its ranks. `repair`: what gives it the stack,
    whole; `recorded`: whether all this was seen before the run was planned."""

    name: str
    host: str
    torch: str | None
    address: str | None
    interface: str | None
    env: dict[str, str]
    repair: str = "`orch provision`"
    recorded: bool = True


@dataclass(frozen=True)
class Spare:
    """A node that may stand in for a lost one. `host`: its address, as hostfiles have it."""

    node: str
    host: str


@dataclass(frozen=True)
class RunPrecision:
    """A precision that the ranks choose together, because the plan did not know their nodes."""

    arguments: dict[str, tuple[str, ...]]  # precision -> arguments of the script that select it
    file: str = ""  # the choice, stored with the checkpoints; empty if there are none


@dataclass(frozen=True)
class RunLayout:
    """`ranks`: in their order; a pod may know its own alone. `setvars`: a script below
    site-packages that the backend's libraries want to be sourced. `planned_world_size`: before
    nodes were lost; 0 where none was. `precision`: None where the plan has decided.
    `spares_without_bf16`: spare nodes without BF16 instructions, which a restart may need."""

    world_size: int
    backend: str
    backend_module: str
    timeout_seconds: float
    nodes: tuple[NodeEntry, ...]
    ranks: tuple[Placement, ...]
    spares: tuple[Spare, ...] = ()
    setvars: str = ""
    planned_world_size: int = 0
    precision: RunPrecision | None = None
    spares_without_bf16: tuple[str, ...] = ()
    schema: int = SCHEMA

    @property
    def planned_size(self) -> int:
        """How many ranks the run was planned with; that decides on its global batch."""
        return self.planned_world_size or self.world_size

    @property
    def node_names(self) -> list[str]:
        """Nodes that have ranks, node0 first."""
        return list(dict.fromkeys(placement.node for placement in self.ranks))

    @property
    def spare_hosts(self) -> dict[str, str]:
        return {spare.node: spare.host for spare in self.spares}

    def placement(self, rank: int) -> Placement:
        """Raises ProtocolError for a rank that has none."""
        for placement in self.ranks:
            if placement.rank == rank:
                return placement
        raise values.ProtocolError(f"{files.LAYOUT} has no rank {rank}.")

    def on(self, node: str) -> list[Placement]:
        return [placement for placement in self.ranks if placement.node == node]

    def entry(self, node: str) -> NodeEntry:
        """Raises ProtocolError for a node that has none."""
        for one in self.nodes:
            if one.name == node:
                return one
        raise values.ProtocolError(f"{files.LAYOUT} has no node {node}.")

    def replaced(self, stand_ins: Mapping[str, str]) -> RunLayout:
        """With spare nodes in the place of others: lost node -> spare."""
        ranks = (replace(one, node=stand_ins.get(one.node, one.node)) for one in self.ranks)
        used = set(stand_ins.values())
        spares = (spare for spare in self.spares if spare.node not in used)
        return replace(self, ranks=tuple(ranks), spares=tuple(spares))

    def without(self, lost: Collection[str]) -> RunLayout:
        """Of the nodes that are left, its ranks numbered anew; it remembers how many ranks were
        planned."""
        kept = (placement for placement in self.ranks if placement.node not in lost)
        ranks = tuple(replace(placement, rank=rank) for rank, placement in enumerate(kept))
        planned = self.planned_size
        return replace(self, world_size=len(ranks), planned_world_size=planned, ranks=ranks)


def parse(text: str | bytes) -> RunLayout:
    """Raises ProtocolError."""
    return values.parse(RunLayout, text, files.LAYOUT)


def render(layout: RunLayout) -> str:
    """One line for each node and each rank: readable, and short with a thousand nodes."""
    head: dict[str, object] = {
        "schema": layout.schema,
        "world_size": layout.world_size,
        "backend": layout.backend,
        "backend_module": layout.backend_module,
        "timeout_seconds": layout.timeout_seconds,
        **({"setvars": layout.setvars} if layout.setvars else {}),
        **({"planned_world_size": layout.planned_world_size} if layout.planned_world_size else {}),
        **({"precision": values.record(layout.precision)} if layout.precision else {}),
        **({"spares_without_bf16": layout.spares_without_bf16} if layout.spares_without_bf16 else {}),
    }
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    if layout.spares:
        parts.append(f'"spares": {lines(layout.spares)}')
    parts += [f'"nodes": {lines(layout.nodes)}', f'"ranks": {lines(layout.ranks)}']
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def lines(entries: Iterable[object]) -> str:
    return "[\n  " + ",\n  ".join(json.dumps(values.record(one)) for one in entries) + "\n ]"
