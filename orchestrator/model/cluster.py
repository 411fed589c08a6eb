"""The nodes of a cluster, the ranks on their cores, and the network between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orch_node.protocol import fabrics
from orch_node.protocol.cores import default_ranks, split, split_near
from orch_node.protocol.environment import interface_variables
from orch_node.protocol.fabrics import Device
from orch_node.protocol.record import RankPlacement, RunNode

from orchestrator.errors import PlanError
from orchestrator.model.decision import Finding
from orchestrator.model.facts import Facts
from orchestrator.model.hosts import fold, grouped
from orchestrator.model.printable import counted

LOCAL = "local"  # orch's built-in inventory of this machine
GIB = 2**30


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

    def selected_nodes(self, names: tuple[str, ...] | None = None) -> tuple[Node, ...]:
        """Return the selected nodes, or those with these names.

        Raises:
            PlanError: if one is not provisioned or its record is damaged.
        """
        names = self.selection.hosts if names is None else names
        nodes_by_name = {node.name: node for node in self.nodes}
        hint = f"Run `orch provision {self.source}`, or exclude these nodes with --exclude."
        if damaged := [self.damaged[name] for name in names if name in self.damaged]:
            more = f" {len(damaged) - 1} more records are damaged." if damaged[1:] else ""
            raise PlanError(f"{damaged[0]}{more}", hint=hint)
        if missing := [name for name in names if name not in nodes_by_name]:
            raise PlanError(f"{fold(missing)}: not provisioned yet.", hint=hint)
        return tuple(nodes_by_name[name] for name in names)

    def spare_nodes(self) -> tuple[Node, ...]:
        """Return the spare nodes.

        Raises:
            PlanError: if a spare node cannot replace every selected node.
        """
        selected, spares = self.selected_nodes(), self.selected_nodes(self.selection.spares)
        for spare in spares:
            kind = (spare.facts.cores, len(spare.facts.gpus))
            if mismatches := [node.name for node in selected if (node.facts.cores, len(node.facts.gpus)) != kind]:
                raise PlanError.about("unequal-spare", spare=spare, nodes=fold(mismatches))
        return spares


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The places of all ranks, in rank order."""

    rank_places: tuple[RankPlacement, ...]

    @property
    def world_size(self) -> int:
        return len(self.rank_places)

    def by_node(self) -> dict[str, tuple[RankPlacement, ...]]:
        """Return the places of every node."""
        by_name = grouped((rank_place.node, rank_place) for rank_place in self.rank_places)
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
        rank_places += placements_of(node.name, len(rank_places), kinds[kind])
    return Layout(rank_places=tuple(rank_places))


def placements_of(node: str, first: int, shares: Sequence[Share], threads: int | None = None) -> list[RankPlacement]:
    """Return the places of a node's ranks, with a thread for each CPU unless their number is given."""
    return [
        RankPlacement(
            rank=first + local_rank,
            node=node,
            local_rank=local_rank,
            local_world_size=len(shares),
            cpus=cpus,
            threads=len(cpus) if threads is None else threads,
            worker_cpus=worker_cpus,
        )
        for local_rank, (cpus, worker_cpus) in enumerate(shares)
    ]


def uniform_layout(*, prefix: str, nodes: int, ppn: int, threads: int) -> Layout:
    """Return a layout of equal nodes PREFIX-0, PREFIX-1, ...; each node chooses the CPUs of its ranks."""
    shares = [((), ())] * ppn
    placements = (placements_of(f"{prefix}-{node}", node * ppn, shares, threads) for node in range(nodes))
    return Layout(rank_places=tuple(placement for of_node in placements for placement in of_node))


def shares_of(node: Node, ppn: int | None, workers: int, devices: tuple[int | None, ...] = ()) -> tuple[Share, ...]:
    """Return the cores of each rank of a node, near its device if `devices` has the NUMA node of each.

    Raises:
        PlanError: if there are too few cores.
    """
    cores = node.facts.cores
    if ppn is None and devices:
        ppn = len(devices)
    if ppn is not None and not 1 <= ppn <= len(cores):
        most = "1" if len(cores) == 1 else f"1 to {len(cores)}"
        auto, available = default_ranks(cores), counted(len(cores), "physical core")
        raise PlanError.about("high-ppn", ppn=ppn, node=node, cores=available, most=most, auto=auto)
    ranks = ppn or default_ranks(cores)
    # Ranks beyond the number of devices share them.
    near = tuple(devices[rank % len(devices)] for rank in range(ranks) if devices)
    shares = split_near(cores, near) if near else split(cores, ranks)
    size = len(shares[0])
    if workers and not 0 < workers < size:
        raise PlanError.about("workers-of-rank", workers=workers, node=node, cores=counted(size, "core"), most=size - 1)
    first_cpus = (tuple(core.cpus[0] for core in cores) for cores in shares)
    return tuple((cpus[: len(cpus) - workers], cpus[len(cpus) - workers :]) for cpus in first_cpus)


LOOPBACK, LOOPBACK_ADDRESS = "lo", "127.0.0.1"
ORCH_ADDRESS = "Set orch_address in the inventory to an address that the other nodes can reach."


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The connection of a node to its peers.

    Attributes:
        address: the node's address on the interface.
        reason: why this interface was chosen.
        fabric: the fabric that MPI and oneCCL use.
        devices: the devices of the fabric; none for TCP.
    """

    node: str
    interface: str
    address: str
    reason: str
    fabric: str = fabrics.TCP
    devices: tuple[Device, ...] = ()

    def environment(self) -> dict[str, str]:
        """Return the variables that restrict gloo, oneCCL and libfabric to this interface and fabric.

        If another interface has the same address on all nodes, such as docker0, the mpi transport hangs silently unless
        libfabric gets the interface's name.
        """
        variables = fabrics.node_variables(self.fabric, self.interface, self.devices)
        return {**interface_variables(self.interface), **variables}

    def rank_environments(self, numa: tuple[int | None, ...], transport: str) -> tuple[dict[str, str], ...]:
        """Return the variables of each of the node's ranks, whose cores are on the NUMA nodes `numa`."""
        return tuple(
            fabrics.rank_variables(self.fabric, names, transport) for names in fabrics.share_devices(self.devices, numa)
        )


def links(nodes: tuple[Node, ...]) -> tuple[Link, ...]:
    """Return the link of every node; empty for a single node.

    Raises:
        PlanError: if a node's interface cannot be determined, or if it has the address of another node or a loopback
            address.
    """
    if len(nodes) == 1:
        return ()
    names = frozenset(node.name for node in nodes)
    node_links = tuple(link(node, names) for node in nodes)
    for address, sharing in grouped((item.address, item.node) for item in node_links).items():
        if len(sharing) > 1:
            raise PlanError(f"{fold(sharing)} have the same address, {address}.", hint=ORCH_ADDRESS)
        if address.startswith("127.") or address == "::1":
            raise PlanError.about("loopback-address", node=sharing[0], address=address)
    return node_links


def link(node: Node, nodes: frozenset[str]) -> Link:
    """Return the interface of packets to the peers, or else the interface that has the node's address.

    Raises:
        PlanError: if there is neither.
    """
    interfaces, routes = node.facts.interfaces, routes_to(node, nodes)
    holder = next((name for name, addresses in interfaces.items() if node.address in addresses), None)
    detours = " and ".join(sorted(routes - {holder}))
    if holder and detours:
        reason = f"has the node's address; packets to some nodes leave through {detours}"
    elif holder:
        reason = "route to the other nodes" if routes else "has the node's address"
    elif len(routes) == 1 and interfaces.get(detours):
        reason = "route to the other nodes, which use another address of this node"
    else:
        listing = ", ".join(f"{name} {' '.join(addresses)}" for name, addresses in interfaces.items())
        route_text = f", and reaches the other nodes through {detours}" if detours else ""
        raise PlanError.about("address-of-node", node=node, listing=listing, route=route_text, advice=ORCH_ADDRESS)
    address = node.address if holder else interfaces[detours][0]
    return Link(node=node.name, interface=holder or detours, address=address, reason=reason)


def routes_to(node: Node, nodes: frozenset[str]) -> set[str]:
    """Return the interfaces of packets to these nodes; empty if they were not recorded."""
    facts = node.facts
    peers = nodes - {node.name}
    detours = {peer: interface for peer, interface in facts.detours.items() if peer in peers}
    uses_route = len(peers) > len(detours) and facts.route
    return set(detours.values()) | ({facts.route} if uses_route else set())
