"""Run records as nodes send them, and the cluster of the controller that receives them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orch_node.protocol.record import RunNode, RunRecord

from tests.conftest import make_cluster, make_node
from tests.support.recorded import RUN_RECORD as RECORD


def make_sent_record(**changes: Any) -> RunRecord:
    """Return a record as a node sends it."""
    nodes = (RunNode(node="node0"), RunNode(node="node1"))
    start = replace(RECORD, node0=nodes[0], nodes=nodes, output_dir=None)
    return replace(start, **changes)


CLUSTER = make_cluster(
    make_node("node0", via=("ssh", "-F", "/own/config", "node0")),
    make_node("node1", via=("ssh", "-F", "/own/config", "node1")),
    make_node("here"),
)
