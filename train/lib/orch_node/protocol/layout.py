"""layout.json: which rank runs on which cores of which node, with which variables; hostfiles, and the precision."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from orch_node.protocol import files, values
from orch_node.protocol.node_names import grouped
from orch_node.protocol.record import RankPlacement

NO_GPU = ("gpu", None)
# Fields of the file: left out if they are empty, and those with one line for each entry.
OPTIONAL = ("setvars", "planned_world_size", "precision", "working_directory", "spares_without_bf16", "spares")
ENTRIES = ("nodes", "ranks")
FIELDS = ("schema", "world_size", "backend", "backend_module", "timeout_seconds", *OPTIONAL, *ENTRIES)
# A line of a hostfile.
HOST_LINES = {"intel": "{address}:{ranks}", "mpich": "{address}:{ranks}", "openmpi": "{address} slots={ranks}"}
# The precision of a run. If the nodes are known when a run is planned, the plan decides. Batch jobs and pods have
# `auto`: their ranks inspect the assigned CPUs and decide together.
AUTO = "auto"  # orch chooses
BF16 = "bf16"
FP32 = "fp32"
# The names in /proc/cpuinfo: Intel AMX, Intel and AMD AVX-512, ARM.
BF16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")
# CPU flag -> the flag of the instructions that it extends (Intel SDM, volume 1, chapter 5).
REQUIRED_FLAGS = {"avx512_bf16": "avx512f", "amx_bf16": "amx_tile"}
# A placeholder for the arguments of the precision that the ranks will choose.
PRECISION_PLACEHOLDER = "--orch-precision=auto"


@dataclass(frozen=True)
class RankEntry(RankPlacement):
    """The placement of a rank, which is pinned to its cores if it has any, and what it starts with."""

    env: dict[str, str] = field(default_factory=dict)  # variables of this rank only
    gpu: int | None = None  # the number on the node of the GPU that is reserved for the rank


@dataclass(frozen=True)
class NodeEntry:
    """A node of a run. Values that are not known are None."""

    name: str
    host: str  # the node's own host name
    torch: str | None = None  # version
    address: str | None = None  # by which the other nodes reach it
    interface: str | None = None
    env: dict[str, str] = field(default_factory=dict)  # variables of all its ranks
    repair: str = "`orch provision`"  # the command that repairs its stack
    recorded: bool = True  # whether these values were recorded before the run was planned


@dataclass(frozen=True)
class RunPrecision:
    """The choice of a precision by the ranks, because the plan does not know their nodes."""

    arguments: dict[str, tuple[str, ...]]  # precision -> arguments of the script that select it
    file: str = ""  # the choice, stored with the checkpoints; empty if there are none


@dataclass(frozen=True)
class RunLayout:
    """The ranks and nodes of a run."""

    world_size: int
    backend: str
    backend_module: str
    timeout_seconds: float
    nodes: tuple[NodeEntry, ...]
    ranks: tuple[RankEntry, ...]  # in their order; a pod may know only its own
    spares: dict[str, str] = field(default_factory=dict)  # nodes that may replace lost ones: addresses in hostfiles
    setvars: str = ""  # a script below site-packages that is sourced for the backend's libraries
    planned_world_size: int = 0  # before nodes were lost; 0 if none was lost
    precision: RunPrecision | None = None  # None if the plan has decided
    spares_without_bf16: tuple[str, ...] = ()  # spare nodes without BF16 instructions
    working_directory: str = ""  # in which the script starts; empty for that of the launcher
    schema: int = 1

    @property
    def planned_size(self) -> int:
        """Return the planned number of ranks, which determines the global batch."""
        return self.planned_world_size or self.world_size

    @property
    def node_names(self) -> list[str]:
        """Return the names of the nodes that have ranks, node0 first."""
        return list(self.ranks_by_node)

    @cached_property
    def ranks_by_node(self) -> dict[str, list[RankEntry]]:
        """Return the ranks of each node, node0 first."""
        return grouped((placement.node, placement) for placement in self.ranks)

    def placement(self, rank: int) -> RankEntry:
        """Return the place of a rank.

        Raises:
            ProtocolError: if the layout has no such rank.
        """
        if placement := next((placement for placement in self.ranks if placement.rank == rank), None):
            return placement
        raise values.ProtocolError(f"{files.LAYOUT} has no rank {rank}.")

    def ranks_on(self, node: str) -> list[RankEntry]:
        """Return the ranks of a node."""
        return self.ranks_by_node.get(node, [])

    def entry(self, node: str) -> NodeEntry:
        """Return the entry of a node.

        Raises:
            ProtocolError: if the layout has no such node.
        """
        if entry := next((entry for entry in self.nodes if entry.name == node), None):
            return entry
        raise values.ProtocolError(f"{files.LAYOUT} has no node {node}.")

    def replace_nodes(self, stand_ins: Mapping[str, str]) -> RunLayout:
        """Return the layout with spare nodes in place of lost ones.

        Args:
            stand_ins: lost node -> spare node.
        """
        ranks = (replace(rank, node=stand_ins.get(rank.node, rank.node)) for rank in self.ranks)
        spares = {node: host for node, host in self.spares.items() if node not in stand_ins.values()}
        return replace(self, ranks=tuple(ranks), spares=spares)

    def remove_nodes(self, lost: Collection[str]) -> RunLayout:
        """Return the layout without lost nodes, its ranks numbered from 0."""
        remaining = (placement for placement in self.ranks if placement.node not in lost)
        ranks = tuple(replace(placement, rank=rank) for rank, placement in enumerate(remaining))
        return replace(self, world_size=len(ranks), planned_world_size=self.planned_size, ranks=ranks)


def parse(text: str | bytes) -> RunLayout:
    """Parse layout.json.

    Raises:
        ProtocolError: if it is damaged.
    """
    return values.parse(RunLayout, text, files.LAYOUT)


def render(layout: RunLayout) -> str:
    """Return the content of layout.json, with one line for each node and rank."""
    record = values.record(layout)
    parts = {name: json.dumps(record[name]) for name in FIELDS if record[name] or name not in OPTIONAL}
    for name in ENTRIES:
        entries = ({key: entry[key] for key in entry if (key, entry[key]) != NO_GPU} for entry in record[name])
        parts[name] = "[\n  " + ",\n  ".join(map(json.dumps, entries)) + "\n ]"
    return "{\n " + ",\n ".join(f'"{name}": {text}' for name, text in parts.items()) + "\n}\n"


def bf16_flag(flags: Collection[str]) -> str | None:
    """Return the fastest instruction set for BF16 among these CPU flags, or None."""
    return next((flag for flag in BF16_FLAGS if flag in flags), None)


def check_flags(flags: Collection[str]) -> Collection[str]:
    """Check that CPU flags do not contradict each other, and return them.

    Raises:
        ValueError: if a flag is present without the flag of the instructions that it extends.
    """
    for flag, base in REQUIRED_FLAGS.items():
        if flag in flags and base not in flags:
            raise ValueError(f"wrong CPU flags: {flag} without {base}; the kernel or virtual machine is wrong")
    return flags


def describe_lack(hosts: str) -> str:
    """Return why BF16 would be slow; `hosts` is a name or a folded list such as node[1-3]."""
    return f"{hosts} {'have' if ',' in hosts or '[' in hosts else 'has'} no BF16 instructions"


def hostfile(implementation: str, hosts: Iterable[tuple[str, int]]) -> str:
    """Return the content of a hostfile.

    Args:
        implementation: intel, mpich or openmpi.
        hosts: address and number of ranks of each host, in the order of ranks.
    """
    return "".join(HOST_LINES[implementation].format(address=host, ranks=ranks) + "\n" for host, ranks in hosts)
