"""Nodes, and the facts recorded about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from orchestrator.errors import PlanError

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Core:
    """A physical core and those of its hardware threads that orch may use."""

    numa: int
    socket: int
    core: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a node is and has. Memory in bytes; `libraries`: name -> path; `packages`: version;
    `interfaces`: addresses."""

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
    mpiexec: str | None

    @property
    def numa_nodes(self) -> tuple[tuple[Core, ...], ...]:
        """The cores, NUMA node by NUMA node."""
        ordered = sorted(self.cores)
        return tuple(tuple(cores) for _, cores in groupby(ordered, key=lambda core: core.numa))

    @property
    def bf16(self) -> str | None:
        """The instruction set that makes BF16 fast here, or None."""
        return next((flag for flag in ("amx_bf16", "avx512_bf16") if flag in self.flags), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A host of the inventory. `python` is the interpreter of its ranks.

    `via`: the OpenSSH command that reaches it, empty for this machine. `root`: the folder that
    `orch provision` fills on it.
    """

    name: str
    address: str
    python: str
    facts: Facts
    via: tuple[str, ...] = ()
    root: str = ""

    @property
    def local(self) -> bool:
        return not self.via


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The hosts of one inventory, in its order, and the nodes among them that are known."""

    name: str
    source: str
    hosts: tuple[str, ...]
    nodes: tuple[Node, ...]

    def choose(self, count: int | None) -> tuple[Node, ...]:
        """The first `count` nodes, or all. Raises PlanError for too many, or unknown ones."""
        if count is not None and not 1 <= count <= len(self.hosts):
            has = f"{len(self.hosts)} node{'s' * (len(self.hosts) != 1)}"
            raise PlanError(
                f"--nodes {count}, but cluster '{self.name}' has {has}.",
                hint=f"Use --nodes {len(self.hosts)}, or add hosts to {self.source}.",
            )
        known = {node.name: node for node in self.nodes}
        wanted = self.hosts[:count]
        if unknown := [name for name in wanted if name not in known]:
            raise PlanError(
                f"Nothing is known about {', '.join(unknown)}.",
                hint=f"Run `orch provision {self.source}`.",
            )
        return tuple(known[name] for name in wanted)
