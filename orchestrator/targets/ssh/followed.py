"""Records of runs that nodes have sent: shown as they are, but followed only along ways, folders
and programs that this controller knows itself, from the inventory and `orch provision`. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from orch_node.protocol import files
from orch_node.protocol.record import DEFAULT_TARGET, RunNode, RunRecord

from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.hostlist import fold
from orchestrator.targets.trusted_record import UntrustedRecordError, check_output_dir

STACK_PYTHON = re.compile(r"/stacks/[A-Za-z0-9][A-Za-z0-9._-]*/bin/python", re.ASCII)
HINT = "Nothing was changed. Check who can write to the runs folder on that node."


def followed(record: RunRecord, cluster: Cluster, *, told_by: str) -> RunRecord:
    """The record, with everything in it that leads somewhere replaced by what is known here.
    `told_by`: the node that has sent it. Raises UntrustedRecordError."""
    known = {node.name: node for node in cluster.nodes if not node.local}
    named = [one.node for one in record.nodes]
    if unknown := [name for name in named if name not in known]:
        raise UntrustedRecordError(
            f"{record.run_id} is said to be on {fold(list(map(shown, unknown)))}, which "
            f"{cluster.name} does not have as a provisioned node.",
            hint="; ".join(cluster.damaged[name] for name in unknown if name in cluster.damaged)
            or "Name an inventory with all of its nodes.",
        )
    if told_by not in named:
        raise UntrustedRecordError(f"{told_by} tells of {record.run_id}, of which it is no node.", hint=HINT)
    if record.target != DEFAULT_TARGET or record.location:
        raise UntrustedRecordError(
            f"{record.run_id} is said to be on {shown(record.target)}, not on these nodes.", hint=HINT
        )
    node0 = known[named[0]]
    check_output_dir(record, f"{node0.root}/runs")
    return replace(
        record,
        node0=RunNode(node=node0.name, via=node0.via),
        nodes=tuple(RunNode(node=name, via=known[name].via) for name in named),
        run_dir=f"{node0.root}/runs/{record.run_id}",
        train=f"{node0.root}/train",
        python=interpreter(record.python, node0),
    )


def shown(name: str) -> str:
    """A name that somebody has made up, as it may be printed."""
    return name if files.is_run_id(name) else f"{name!r:.80}"


def interpreter(said: str, node: Node) -> str:
    """Of whichever stack the run has, below orch's folder on the node."""
    below = said.removeprefix(node.root)
    ours = said.startswith(node.root) and STACK_PYTHON.fullmatch(below)
    return said if ours else node.python
