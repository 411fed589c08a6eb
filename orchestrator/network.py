"""Which network interface of each node carries the traffic between ranks."""

from __future__ import annotations

from orchestrator.cluster import Node
from orchestrator.errors import PlanError


def interface(node: Node) -> str:
    """The interface that holds the node's address. Raises PlanError if none does."""
    for name, addresses in node.facts.interfaces.items():
        if node.address in addresses:
            return name
    known = ", ".join(f"{name} {' '.join(a)}" for name, a in node.facts.interfaces.items())
    raise PlanError(
        f"{node.name} has the address {node.address} on none of its interfaces ({known}).",
        hint="Set orch_address in the inventory to the address that the other nodes reach.",
    )


def environment(node: Node) -> dict[str, str]:
    """Variables that hold gloo, oneCCL and libfabric to the same interface of this node.

    A second interface with the same address on all nodes (docker0) hangs the mpi transport
    silently unless libfabric is told which one to take.
    """
    name = interface(node)
    return {
        "GLOO_SOCKET_IFNAME": name,
        "CCL_KVS_IFACE": name,
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": name,
    }
