"""Check and complete run records that nodes have sent, with data that this machine trusts. Pure.

A record from a node may be listed as it is. Before anything is done with the run, the ssh commands,
folders and programs in it are replaced by those from the inventory and `orch provision`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from orch_node.protocol import files
from orch_node.protocol.record import DEFAULT_TARGET, RunNode, RunRecord

from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.hostlist import fold
from orchestrator.targets.identity import UntrustedRecordError, check_output_dir

STACK_PYTHON = re.compile(r"/stacks/[A-Za-z0-9][A-Za-z0-9._-]*/bin/python", re.ASCII)
HINT = "Nothing was changed. Check who can write to the runs folder on that node."


def trusted_record(record: RunRecord, cluster: Cluster, *, sender: str) -> RunRecord:
    """Return a record whose ssh commands, folders and Python are those that this machine trusts.

    Args:
        record: the record that a node has sent.
        cluster: the nodes of the inventory, as `orch provision` has recorded them.
        sender: the name of the node that has sent the record.

    Raises:
        UntrustedRecordError: if the record contradicts the inventory.
    """
    provisioned = {node.name: node for node in cluster.nodes if not node.local}
    node_names = [host.node for host in record.nodes]
    if unprovisioned := [name for name in node_names if name not in provisioned]:
        raise UntrustedRecordError(
            f"{sender} reports run {record.run_id} on {fold(list(map(printable, unprovisioned)))}, "
            f"which {cluster.name} does not have as a provisioned node.",
            hint="; ".join(cluster.damaged[name] for name in unprovisioned if name in cluster.damaged)
            or "Use an inventory with all nodes of the run.",
        )
    if sender not in node_names:
        raise UntrustedRecordError(f"{sender} reports run {record.run_id}, but is not one of its nodes.", hint=HINT)
    if record.target != DEFAULT_TARGET or record.location:
        raise UntrustedRecordError(
            f"{sender} reports run {record.run_id} on {printable(record.target)}, not on these nodes.", hint=HINT
        )
    node0 = provisioned[node_names[0]]
    check_output_dir(record, f"{node0.root}/runs")
    return replace(
        record,
        node0=RunNode(node=node0.name, via=node0.via),
        nodes=tuple(RunNode(node=name, via=provisioned[name].via) for name in node_names),
        earlier_nodes=tuple(
            RunNode(node=host.node, via=provisioned[host.node].via)
            for host in record.earlier_nodes
            if host.node in provisioned
        ),
        run_dir=f"{node0.root}/runs/{record.run_id}",
        train=f"{node0.root}/train",
        python=interpreter(record.python, node0),
    )


def printable(name: str) -> str:
    """Return a name from an untrusted record in a form that is safe to print."""
    return name if files.is_run_id(name) else f"{name!r:.80}"


def interpreter(python: str, node: Node) -> str:
    """Return the Python of a record if it is that of a stack of the node, else the node's default."""
    relative_path = python.removeprefix(node.root)
    is_stack_python = python.startswith(node.root) and STACK_PYTHON.fullmatch(relative_path)
    return python if is_stack_python else node.python
