"""Nodes, and the facts recorded about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orch_node.protocol.cores import Core as Core
from orch_node.protocol.cores import by_numa as by_numa
from orch_node.protocol.fabrics import Device, Proof
from orch_node.protocol.precision import bf16_flag

from orchestrator.errors import PlanError
from orchestrator.model.hostlist import fold

LOCAL = "local"  # the inventory of this machine, which is orch's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a node is and has. Memory in bytes; `libraries`: name -> path; `packages`: version;
    `interfaces`: addresses; `mpi`: flavour -> launcher. `fingerprint` is that of the packages.

    `route`: the interface that packets to the other nodes leave by, as `orch provision` saw it;
    `detours`: peer -> interface, for those that are reached by another one.

    `devices`: for RDMA; `fabrics`: fabric -> what is missing there for it, empty if nothing is;
    `proved`: fabric -> what came of its ping-pong when the node was provisioned.
    """

    hostname: str
    python: str
    cpu_model: str
    flags: frozenset[str]
    cores: tuple[Core, ...]
    memory_bytes: int
    shm_bytes: int
    libraries: Mapping[str, str]
    packages: Mapping[str, str]
    interfaces: Mapping[str, tuple[str, ...]]
    mpi: Mapping[str, str]
    fingerprint: str = ""
    route: str = ""
    detours: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    devices: tuple[Device, ...] = ()
    fabrics: Mapping[str, str] = field(default_factory=dict)
    proved: Mapping[str, Proof] = field(default_factory=dict)

    @property
    def numa_nodes(self) -> tuple[tuple[Core, ...], ...]:
        """The cores, NUMA node by NUMA node."""
        return by_numa(self.cores)

    @property
    def bf16(self) -> str | None:
        """The instruction set that makes BF16 fast here, or None."""
        return bf16_flag(self.flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A host of the inventory. `python` is the interpreter of its ranks.

    `via`: the OpenSSH command that reaches it, empty for this machine. `root`: the folder that
    `orch provision` fills on it. `repair`: what gives it the stack, whole.
    """

    name: str
    address: str
    python: str
    facts: Facts
    via: tuple[str, ...] = ()
    root: str = ""
    repair: str = "`orch provision`"

    @property
    def local(self) -> bool:
        return not self.via


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The hosts chosen for a run, in the order of its ranks, and how they were chosen.

    `spares` have no ranks at first: they take the place of nodes that are lost.
    """

    hosts: tuple[str, ...]
    reason: str
    spares: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The hosts of one inventory that were chosen, and those among them that are known.

    `mpi`, `fabric`: what the inventory asks for. `damaged`: host -> why its record cannot be
    read, in words with the remedy; also hosts that were not chosen, as far as their records were
    looked at. `ssh_config`: how all nodes are reached; None where no such file must be written.
    """

    name: str
    source: str
    selection: Selection
    nodes: tuple[Node, ...]
    mpi: str | None = None
    damaged: Mapping[str, str] = field(default_factory=dict)
    ssh_config: str | None = None
    fabric: str | None = None

    def chosen(self) -> tuple[Node, ...]:
        """The chosen nodes. Raises PlanError for those of which nothing is known."""
        return self.named(self.selection.hosts)

    def is_recorded(self, name: str) -> bool:
        """Whether `orch provision` has told of a host, be it in a record that is damaged."""
        return name in self.damaged or any(node.name == name for node in self.nodes)

    def spares(self) -> tuple[Node, ...]:
        """Raises PlanError for a spare node that could not stand in for every chosen one."""
        chosen, spares = self.chosen(), self.named(self.selection.spares)
        for spare in spares:
            unlike = [node.name for node in chosen if node.facts.cores != spare.facts.cores]
            if unlike:
                raise PlanError(
                    f"{spare.name} cannot be a spare for {fold(unlike)}: it has other cores.",
                    hint="Choose nodes that are alike with --nodes and --exclude.",
                )
        return spares

    def named(self, names: tuple[str, ...]) -> tuple[Node, ...]:
        known = {node.name: node for node in self.nodes}
        hint = f"Run `orch provision {self.source}`, or leave them out with --exclude."
        if damaged := [self.damaged[name] for name in names if name in self.damaged]:
            more = f" So is it with {len(damaged) - 1} more." if damaged[1:] else ""
            raise PlanError(f"{damaged[0]}{more}", hint=hint)
        if unknown := [name for name in names if name not in known]:
            raise PlanError(f"Nothing is known about {fold(unknown)}.", hint=hint)
        return tuple(known[name] for name in names)


def first_hosts(hosts: tuple[str, ...], count: int, *, cluster: str, source: str) -> tuple[str, ...]:
    """The first `count` of the hosts. Raises PlanError if there are fewer, or none is wanted."""
    if not 1 <= count <= len(hosts):
        has = f"{len(hosts)} node{'s' * (len(hosts) != 1)} to choose from"
        more = "name others by --inventory" if cluster == LOCAL else f"add hosts to {source}"
        raise PlanError(
            f"--nodes {count}, but cluster '{cluster}' has {has}.", hint=f"Use --nodes {len(hosts)}, or {more}."
        )
    return hosts[:count]
