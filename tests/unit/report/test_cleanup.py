"""Check the report about a run that was stopped."""

from __future__ import annotations

from orchestrator.report import cleanup
from orchestrator.runs.outcome import CleanupReport, NodeCleanup


def test_stop_of_a_run_without_nodes_prints_no_table() -> None:
    result = cleanup.text(CleanupReport(run_id="20260101-120000-own-1a2b", seconds=0.1, nodes=()))
    assert "none" not in result
    assert "nothing was running" in result


def test_removed_folders_are_listed_with_their_node() -> None:
    node = NodeCleanup(
        node="node1", state="clean", ended=(), left=(), segments=(), problem="", unused=("/opt/orch/store/ab12",)
    )
    result = cleanup.text(CleanupReport(run_id="", seconds=0.1, nodes=(node,)))
    assert "node1: removed /opt/orch/store/ab12: no run uses it\n" in result


def test_many_nodes_with_the_same_result_are_one_row() -> None:
    nodes = [
        NodeCleanup(node=f"node{index}", state="clean", ended=("wrapper 1 (python)",), left=(), segments=(), problem="")
        for index in range(1000)
    ]
    nodes[4] = NodeCleanup(node="node4", state="unreachable", ended=(), left=(), segments=(), problem="timed out")
    report = CleanupReport(run_id="x", seconds=2.0, nodes=tuple(nodes))
    _, *rows, _ = cleanup.text(report).splitlines()
    assert [row.split()[:3] for row in rows] == [["node[0-3,5-999]", "clean", "1"], ["node4", "unreachable", "0"]]
    assert cleanup.describe_stop(report, before="running", after="stopped") == (
        "Run x is not stopped on node4 (unreachable)."
    )
