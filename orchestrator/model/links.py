"""The network interface of each node that carries the traffic between ranks."""

from __future__ import annotations

from dataclasses import dataclass

from orch_node.protocol import fabrics
from orch_node.protocol.environment import interface_variables as interface_variables
from orch_node.protocol.fabrics import Device

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Node
from orchestrator.model.hostlist import fold

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
        return {
            **interface_variables(self.interface),
            **fabrics.node_variables(self.fabric, self.interface, self.devices),
        }

    def rank_environments(self, numa: tuple[int | None, ...], transport: str) -> tuple[dict[str, str], ...]:
        """Return the variables of each of the node's ranks, whose cores are on the NUMA nodes `numa`."""
        return tuple(
            fabrics.rank_variables(self.fabric, names, transport) for names in fabrics.share_devices(self.devices, numa)
        )


def links(nodes: tuple[Node, ...]) -> tuple[Link, ...]:
    """Return the link of every node; empty for a single node.

    Raises:
        PlanError: if a node's interface cannot be determined.
    """
    if len(nodes) == 1:
        return ()
    names = frozenset(node.name for node in nodes)
    node_links = tuple(link(node, names) for node in nodes)
    check_addresses(node_links)
    return node_links


def link(node: Node, nodes: frozenset[str]) -> Link:
    """Return the interface of packets to the peers, or else the interface that has the node's address.

    Raises:
        PlanError: if there is neither.
    """
    interfaces = node.facts.interfaces.items()
    holder = next((name for name, addresses in interfaces if node.address in addresses), None)
    routes = routes_to(node, nodes)
    if holder and routes <= {holder}:
        reason = "route to the other nodes" if routes else "has the node's address"
        return Link(node=node.name, interface=holder, address=node.address, reason=reason)
    if holder:
        detours = " and ".join(sorted(routes - {holder}))
        reason = f"has the node's address; packets to some nodes leave through {detours}"
        return Link(node=node.name, interface=holder, address=node.address, reason=reason)
    if len(routes) == 1:
        (name,) = routes
        if addresses := node.facts.interfaces.get(name):
            reason = "route to the other nodes, which use another address of this node"
            return Link(node=node.name, interface=name, address=addresses[0], reason=reason)
    listing = ", ".join(f"{name} {' '.join(addresses)}" for name, addresses in interfaces)
    route_text = f", and reaches the other nodes through {' and '.join(sorted(routes))}" if routes else ""
    raise PlanError(
        f"{node.name}: no interface has the address {node.address} ({listing}){route_text}.", hint=ORCH_ADDRESS
    )


def routes_to(node: Node, nodes: frozenset[str]) -> set[str]:
    """Return the interfaces of packets to these nodes; empty if they were not recorded."""
    facts = node.facts
    peers = nodes - {node.name}
    detours = {peer: interface for peer, interface in facts.detours.items() if peer in peers}
    uses_route = len(peers) > len(detours) and facts.route
    return set(detours.values()) | ({facts.route} if uses_route else set())


def check_addresses(node_links: tuple[Link, ...]) -> None:
    """Raise PlanError if two nodes have the same address, or one has a loopback address."""
    owners: dict[str, list[str]] = {}
    for link in node_links:
        owners.setdefault(link.address, []).append(link.node)
    for address, names in owners.items():
        if len(names) > 1:
            raise PlanError(f"{fold(names)} have the same address, {address}.", hint=ORCH_ADDRESS)
        if address.startswith("127.") or address == "::1":
            raise PlanError(
                f"{names[0]}: only its loopback address {address} is known.",
                hint=f"Run `orch provision` with all nodes reachable. {ORCH_ADDRESS}",
            )
