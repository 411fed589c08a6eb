"""Check the report about a run that was stopped."""

from __future__ import annotations

from orchestrator.report import cleanup
from orchestrator.runs.outcome import CleanupReport, NodeCleanup


def test_many_nodes_with_the_same_result_are_one_row() -> None:
    nodes = [
        NodeCleanup(node=f"node{index}", state="clean", ended=("wrapper 1 (python)",), left=(), segments=(), problem="")
        for index in range(1000)
    ]
    assert "nothing was running" in cleanup.text(CleanupReport(run_id="x", seconds=0.1, nodes=()))
    nodes[4] = NodeCleanup(node="node4", state="unreachable", ended=(), left=(), segments=(), problem="timed out")
    report = CleanupReport(run_id="x", seconds=2.0, nodes=tuple(nodes))
    _, *rows, _ = cleanup.text(report).splitlines()
    assert [row.split()[:3] for row in rows] == [["node[0-3,5-999]", "clean", "1"], ["node4", "unreachable", "0"]]
    message = cleanup.describe_stop(report, before="running", after="stopped")
    assert message == "Run x is not stopped on node4 (unreachable)."
