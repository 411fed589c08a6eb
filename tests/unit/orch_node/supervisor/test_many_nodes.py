"""Check a run on many nodes, for whose agents and ranks this process stands in."""

from __future__ import annotations

import json
from pathlib import Path

from orch_node.protocol import files
from orch_node.protocol.events import Failed, Joined, Launched, NodeNews, NodesLost

from tests.support.stand_ins import SimulatedRun
from tests.support.waiting import wait_until

NODES = 50
LOST_FILES = [("node30", name) for name in (files.LAYOUT, files.RECORD)]


def test_run_on_many_nodes_restarts_and_stops(tmp_path: Path) -> None:
    run = SimulatedRun(tmp_path, NODES)
    supervisor = run.supervise("--max-restarts=2", open_files=NODES)
    try:
        start_attempt(run, 1)
        assert run.stand_ins.written == given_files(run), "the client sends what grows with the nodes to node0 alone"
        run.fail(20, "ValueError: planned")
        wait_until(lambda: run.events(Failed), "the failure is recorded")
        failures = [event.failure for event in run.events(Failed)]
        assert [(failure.rank, failure.node) for failure in failures] == [(20, "node20")]
        start_attempt(run, 2)
        traces = {path.name for path in (run.folder / files.STACK_TRACES).iterdir()}
        assert traces == {f"rank-{rank}.txt" for rank in range(1, NODES) if rank != 20}  # node0 has a real agent
        run.stand_ins.refused.add("node30")
        start_attempt(run, 3)
        assert run.stand_ins.written == given_files(run) | {key: run.stand_ins.written[key] for key in LOST_FILES}
        assert [event.nodes for event in run.events(NodesLost)] == [("node30",)]
        assert "node50" in run.events(Launched)[-1].nodes
        assert not [event.text for event in run.events(NodeNews) if "did not run" in event.text]
        (run.folder / files.STOP).touch()
        supervisor.terminate()
        assert supervisor.wait(60) == 130
    finally:
        supervisor.kill()
        run.stand_ins.stop()
    handed = [json.loads(line) for line in (run.folder / files.HANDED_LOGS).read_text().splitlines()]
    assert {line["node"] for line in handed} == {f"node{index}" for index in range(1, NODES + 1)} - {"node30"}
    outcome = json.loads((run.folder / files.OUTCOME).read_text())
    assert (outcome["state"], outcome["attempts"], len(outcome["nodes"])) == ("stopped", 3, NODES + 1)


def given_files(run: SimulatedRun) -> dict[tuple[str, str], int]:
    """Return the hash of each file that the other nodes and the spare node should have, by node and name."""
    contents = {name: (run.folder / name).read_text() for name in (files.LAYOUT, files.RECORD)}
    return {(f"node{index}", name): hash(text) for index in range(1, NODES + 1) for name, text in contents.items()}


def start_attempt(run: SimulatedRun, attempt: int) -> None:
    """Start the ranks of an attempt, and wait until they have joined."""
    wait_until(lambda: run.stand_ins.attempts == attempt, f"attempt {attempt} has started")
    run.begin_attempt()
    wait_until(lambda: len(run.events(Joined)) == attempt * NODES, f"the ranks of attempt {attempt} have joined")
