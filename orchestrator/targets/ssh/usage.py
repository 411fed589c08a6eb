"""Query who uses the nodes of an inventory."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from orch_node.protocol import values
from orch_node.protocol.listing import NodeUsage
from orch_node.protocol.record import RunNode
from orch_node.protocol.values import ProtocolError

from orchestrator import load
from orchestrator.model.cluster import Node
from orchestrator.paths import TRAIN
from orchestrator.planning.sent_files import claims_folder
from orchestrator.state import state_home
from orchestrator.targets.interface import LiveNode
from orchestrator.targets.ssh.nodes import NodeResponse, query_all, write_ssh_config

USAGE_SECONDS = 10.0  # time limit of a node's response
CONNECT_SECONDS = 5


def query_inventory(inventory: str, names: Collection[str] | None) -> list[LiveNode]:
    """Query the nodes of an inventory, or those with these names, and return who uses them."""
    cluster = load.cluster(inventory)
    write_ssh_config(cluster)
    return query_usage([node for node in cluster.nodes if names is None or node.name in names])


def query_usage(nodes: Sequence[Node]) -> list[LiveNode]:
    """Query nodes in parallel, and return who uses them, in their order."""
    commands = {node.name: usage_command(node) for node in nodes}
    hosts = [RunNode(node=node.name, via=node.via) for node in nodes]
    responses = query_all(
        hosts, lambda host: commands[host.node], seconds=USAGE_SECONDS, connect_seconds=CONNECT_SECONDS
    )
    return [live_node(node, response) for node, response in zip(nodes, responses, strict=True)]


def usage_command(node: Node) -> tuple[str, ...]:
    """Return the command that prints the usage of a node."""
    if node.local:
        return (sys.executable, f"{TRAIN}/node.py", "usage", claims_folder(str(state_home() / "store")))
    return (node.python, f"{node.root}/train/node.py", "usage", claims_folder(f"{node.root}/store"))


def live_node(node: Node, response: NodeResponse) -> LiveNode:
    usage, problem = None, response.problem
    if response.value is not None:
        try:
            usage = values.read(NodeUsage, response.value, "its usage")
        except ProtocolError as error:
            problem = str(error)
    return LiveNode(name=node.name, cores=len(node.facts.cores), usage=usage, problem=problem)
