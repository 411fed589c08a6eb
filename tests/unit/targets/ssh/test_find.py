"""Choose a run among those that the nodes of an inventory have reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orch_node.protocol.outcome import DONE, REFUSED

from orchestrator.targets.interface import ignore
from orchestrator.targets.ssh.find import InventoryRuns, NodeRun, find_run
from tests.conftest import make_cluster
from tests.support.recorded import RUN_RECORD

FIRST, SECOND = "20260101-120000-qa-0000", "20260102-120000-qa-0000"


def make_runs(**states: str) -> InventoryRuns:
    """Return runs in the order of their ids, with these states."""
    ids = dict(zip(states, (FIRST, SECOND), strict=True))
    runs = {
        run_id: NodeRun(
            record=replace(RUN_RECORD, run_id=run_id, created=float(number)), state=states[key], progress=None
        )
        for number, (key, run_id) in enumerate(ids.items())
    }
    return InventoryRuns(cluster=make_cluster(), runs=runs)


def test_last_is_a_refused_run_only_if_there_is_no_other(tmp_path: Path) -> None:
    mixed, refused = make_runs(first=DONE, second=REFUSED), make_runs(first=REFUSED, second=REFUSED)
    assert find_run(tmp_path, "last", "lab", ignore, recorded=mixed)[0].run_id == FIRST
    assert find_run(tmp_path, SECOND, "lab", ignore, recorded=mixed)[0].run_id == SECOND
    assert find_run(tmp_path, "last", "lab", ignore, recorded=refused)[0].run_id == SECOND
