"""Nodes, and the facts recorded about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from orch_node.protocol.cores import Core as Core
from orch_node.protocol.cores import by_numa as by_numa
from orch_node.protocol.fabrics import Device, Proof
from orch_node.protocol.precision import bf16_flag
from orch_node.protocol.record import RunNode

from orchestrator.errors import PlanError
from orchestrator.model.finding import Finding
from orchestrator.model.hostlist import fold
from orchestrator.model.printable import counted

LOCAL = "local"  # orch's built-in inventory of this machine
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU that programs of the node's user see, as facts.py describes it; empty values are unknown."""

    index: int  # as nvidia-smi numbers it
    vendor: str = "nvidia"  # or amd, intel
    name: str = ""
    uuid: str = ""
    memory_bytes: int = 0
    driver: str = ""  # its version
    numa: int | None = None  # the NUMA node that it is attached to

    def describe(self) -> str:
        memory = f" ({self.memory_bytes / 2**30:.0f} GiB)" if self.memory_bytes else ""
        return f"{self.name or f'GPU of {self.vendor}'}{memory}"


def describe_gpus(gpus: tuple[Gpu, ...]) -> str:
    """Return the number of GPUs of each kind: `8 x NVIDIA H100 80GB HBM3 (80 GiB)`."""
    return ", ".join(f"{count} x {kind}" for kind, count in Counter(gpu.describe() for gpu in gpus).items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The hardware, packages and network of a node.

    Attributes:
        machine: the architecture, such as x86_64; empty if it is unknown.
        libc: the version of glibc; empty for another C library, or if it is unknown.
        memory_bytes: main memory.
        shm_bytes: size of /dev/shm.
        libraries: the path of each library.
        packages: the version of each Python package.
        interfaces: the addresses of each network interface.
        mpi: the launcher of each MPI implementation.
        fingerprint: a hash of the installed packages.
        route: the interface of packets to the other nodes, as recorded by `orch provision`.
        detours: the interfaces of peers that are reached by another one.
        devices: the RDMA devices.
        fabrics: what each fabric lacks on this node; empty if it lacks nothing.
        proved: the ping-pong result of each fabric when the node was provisioned.
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
    machine: str = ""
    libc: str = ""
    fingerprint: str = ""
    route: str = ""
    detours: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    devices: tuple[Device, ...] = ()
    fabrics: Mapping[str, str] = field(default_factory=dict)
    proved: Mapping[str, Proof] = field(default_factory=dict)

    @property
    def numa_nodes(self) -> tuple[tuple[Core, ...], ...]:
        """Return the cores of each NUMA node."""
        return by_numa(self.cores)

    @property
    def bf16(self) -> str | None:
        """Return the instruction set that makes BF16 fast on this node, or None."""
        return bf16_flag(self.flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPython:
    """An interpreter of the user's on which ranks run instead of that of the stack.

    Attributes:
        path: an absolute path.
        bindings: the folder of the stack's packages from which it gets the bindings for `ccl`; empty if it has some, or
            needs none.
        mismatches: packages that do not fit together.
    """

    path: str
    bindings: str = ""
    mismatches: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A host of the inventory.

    Attributes:
        python: the interpreter of orch's processes, and of its ranks without `user_python`.
        via: the OpenSSH command that reaches it; empty for this machine.
        root: the folder that `orch provision` fills on it.
        repair: the command that installs the stack completely.
        user_python: the interpreter that the user has named for its ranks; its packages are in `facts`.
    """

    name: str
    address: str
    python: str
    facts: Facts
    via: tuple[str, ...] = ()
    root: str = ""
    repair: str = "`orch provision`"
    user_python: UserPython | None = None

    @property
    def ranks_python(self) -> str:
        return self.user_python.path if self.user_python else self.python

    @property
    def local(self) -> bool:
        return not self.via

    @property
    def run_node(self) -> RunNode:
        """Return the node as a run records it."""
        return RunNode(node=self.name, via=self.via)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The hosts selected for a run, in the order of its ranks, and how they were selected.

    Attributes:
        spares: hosts without ranks that replace lost nodes.
    """

    hosts: tuple[str, ...]
    reason: str
    spares: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The selected hosts of an inventory, and the provisioned nodes among them.

    Attributes:
        source: the inventory as the user can name it again.
        nodes: the nodes whose facts are known.
        mpi: the MPI implementation that the inventory requests.
        damaged: why each unreadable record cannot be read, with a hint; also of hosts that were not selected, if
            their records were read.
        ssh_config: the ssh configuration of all nodes; None if it need not be written.
        fabric: the fabric that the inventory requests.
        requirements: the requirements file that the inventory names for all runs, or nothing.
    """

    name: str
    source: str
    selection: Selection
    nodes: tuple[Node, ...]
    mpi: str | None = None
    damaged: Mapping[str, str] = field(default_factory=dict)
    ssh_config: str | None = None
    fabric: str | None = None
    requirements: str = ""

    def selected_nodes(self) -> tuple[Node, ...]:
        """Return the selected nodes.

        Raises:
            PlanError: if one is not provisioned or its record is damaged.
        """
        return self.provisioned_nodes(self.selection.hosts)

    def is_recorded(self, name: str) -> bool:
        """Return whether `orch provision` has recorded a host, even if the record is damaged."""
        return name in self.damaged or any(node.name == name for node in self.nodes)

    def spare_nodes(self) -> tuple[Node, ...]:
        """Return the spare nodes.

        Raises:
            PlanError: if a spare node cannot replace every selected node.
        """
        selected, spares = self.selected_nodes(), self.provisioned_nodes(self.selection.spares)
        for spare in spares:
            facts = spare.facts
            mismatches = [
                node.name
                for node in selected
                if node.facts.cores != facts.cores or len(node.facts.gpus) != len(facts.gpus)
            ]
            if mismatches:
                raise PlanError(
                    f"{spare.name} cannot be a spare for {fold(mismatches)}: its cores or GPUs differ.",
                    hint="Select nodes with equal cores and GPUs: --nodes, --exclude.",
                )
        return spares

    def provisioned_nodes(self, names: tuple[str, ...]) -> tuple[Node, ...]:
        """Return the nodes with these names.

        Raises:
            PlanError: if one is not provisioned or its record is damaged.
        """
        nodes_by_name = {node.name: node for node in self.nodes}
        hint = f"Run `orch provision {self.source}`, or exclude these nodes with --exclude."
        if damaged := [self.damaged[name] for name in names if name in self.damaged]:
            more = f" {len(damaged) - 1} more records are damaged." if damaged[1:] else ""
            raise PlanError(f"{damaged[0]}{more}", hint=hint)
        if missing := [name for name in names if name not in nodes_by_name]:
            raise PlanError(f"{fold(missing)}: not provisioned yet.", hint=hint)
        return tuple(nodes_by_name[name] for name in names)


def first_hosts(hosts: tuple[str, ...], count: int, *, cluster: str, source: str) -> tuple[str, ...]:
    """Return the first `count` hosts.

    Raises:
        PlanError: if there are fewer, or count is 0.
    """
    if not 1 <= count <= len(hosts):
        available = f"{counted(len(hosts), 'node')} to choose from"
        more = "select another inventory with --inventory" if cluster == LOCAL else f"add hosts to {source}"
        raise PlanError(
            f"--nodes {count}, but cluster '{cluster}' has {available}.", hint=f"Use --nodes {len(hosts)}, or {more}."
        )
    return hosts[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The minimum resources of a node in bytes and seconds; orch_limits of the inventory overrides them."""

    disk: int = 5 * GIB  # 0.7 for wheels, 2 for the environment, and the same again for an update
    memory: int = 2 * GIB
    shm: int = GIB // 4  # for Intel MPI's segments of a few ranks
    skew: float = 5.0
