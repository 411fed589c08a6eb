"""A user's commands on the nodes."""

from __future__ import annotations

from pathlib import Path

from orch_node.protocol.record import RunNode

from orchestrator.targets.ssh.commands import SshCommands
from orchestrator.targets.ssh.nodes import MAX_PARALLEL_QUERIES

WITH_NAME = ("sh", "-c", 'shift; NODE="$0" exec "$@"')
WAIT_FOR_LAST = 'touch "$1/$NODE"; for i in $(seq 100); do [ -e "$1/last" ] && exit 0; sleep 0.1; done; exit 1'


def test_command_runs_on_all_nodes_at_the_same_time(tmp_path: Path) -> None:
    names = [*(f"node{number}" for number in range(MAX_PARALLEL_QUERIES)), "last"]
    commands = SshCommands({RunNode(node=name): (*WITH_NAME, name) for name in names})
    ends = commands.run(("sh", "-c", WAIT_FOR_LAST, "sh", str(tmp_path)), lambda node, stream, part: None)
    assert [node for node, end in ends.items() if end != 0] == [], "they waited for the last node"
