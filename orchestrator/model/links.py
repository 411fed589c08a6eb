"""Which network interface of each node carries the traffic between ranks."""

from __future__ import annotations

from dataclasses import dataclass

from orch_node.protocol import fabrics
from orch_node.protocol.environment import held_to as held_to
from orch_node.protocol.fabrics import Device

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Node
from orchestrator.model.hostlist import fold

LOOPBACK, LOOPBACK_ADDRESS = "lo", "127.0.0.1"
ORCH_ADDRESS = "Set orch_address in the inventory to the address that the other nodes reach."


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins a node to its peers: an interface, its address there, and why this one.

    `fabric`: what MPI and oneCCL talk over; `devices`: those that carry it, none for TCP.
    """

    node: str
    interface: str
    address: str
    reason: str
    fabric: str = fabrics.TCP
    devices: tuple[Device, ...] = ()

    def environment(self) -> dict[str, str]:
        """Variables that hold gloo, oneCCL and libfabric (below MPI) to this interface and fabric.

        A second interface with the same address on all nodes (docker0) hangs the mpi transport
        silently unless libfabric is told which one to take.
        """
        own = fabrics.node_variables(self.fabric, self.interface, self.devices)
        return {**held_to(self.interface), **own}

    def of_ranks(self, numa: tuple[int | None, ...], transport: str) -> tuple[dict[str, str], ...]:
        """Variables of each rank of the node, near whose NUMA nodes `numa` its devices are."""
        return tuple(
            fabrics.rank_variables(self.fabric, names, transport) for names in fabrics.shares(self.devices, numa)
        )


def meeting_address(found: tuple[Link, ...]) -> str:
    """Where rank 0 waits for the others. On one node nobody else has to reach it."""
    return found[0].address if found else LOOPBACK_ADDRESS


def links(nodes: tuple[Node, ...]) -> tuple[Link, ...]:
    """The link of every node; none are needed on one node alone. Raises PlanError."""
    if len(nodes) == 1:
        return ()
    names = frozenset(node.name for node in nodes)
    found = tuple(link(node, names) for node in nodes)
    check_addresses(found)
    return found


def link(node: Node, nodes: frozenset[str]) -> Link:
    """The interface that packets to the peers leave by, or else the one with the node's address.

    Raises PlanError if neither can be told.
    """
    holder = holding(node)
    routes = routes_to(node, nodes)
    if holder and routes <= {holder}:
        why = "the route to the other nodes" if routes else "it holds the nodes' address"
        return Link(node=node.name, interface=holder, address=node.address, reason=why)
    if holder:
        others = " and ".join(sorted(routes - {holder}))
        why = f"it holds the nodes' address, at which the others reach it; packets to some leave \
by {others}"
        return Link(node=node.name, interface=holder, address=node.address, reason=why)
    if len(routes) == 1:
        (name,) = routes
        if addresses := node.facts.interfaces.get(name):
            why = "the route to the other nodes, which reach it at another address"
            return Link(node=node.name, interface=name, address=addresses[0], reason=why)
    known = ", ".join(f"{name} {' '.join(a)}" for name, a in node.facts.interfaces.items())
    by = f", and reaches the others by {' and '.join(sorted(routes))}" if routes else ""
    raise PlanError(
        f"{node.name} has the address {node.address} on none of its interfaces ({known}){by}.", hint=ORCH_ADDRESS
    )


def holding(node: Node) -> str | None:
    """The interface that has the node's address."""
    found = node.facts.interfaces.items()
    return next((name for name, addresses in found if node.address in addresses), None)


def routes_to(node: Node, nodes: frozenset[str]) -> set[str]:
    """The interfaces that packets to these nodes leave by; empty where that was not recorded."""
    facts = node.facts
    peers = nodes.__contains__
    detours = {peer: at for peer, at in facts.detours.items() if peers(peer) and peer != node.name}
    straight = len(nodes) - peers(node.name) > len(detours)
    return set(detours.values()) | ({facts.route} if straight and facts.route else set())


def check_addresses(found: tuple[Link, ...]) -> None:
    """Raises PlanError for an address that cannot be that of one node among others."""
    owners: dict[str, list[str]] = {}
    for one in found:
        owners.setdefault(one.address, []).append(one.node)
    for address, names in owners.items():
        if len(names) > 1:
            raise PlanError(f"{fold(names)} have the same address, {address}.", hint=ORCH_ADDRESS)
        if address.startswith("127.") or address == "::1":
            raise PlanError(
                f"{names[0]} is known by its loopback address {address} only.",
                hint=f"Run `orch provision` with all nodes reachable. {ORCH_ADDRESS}",
            )
