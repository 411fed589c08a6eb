"""The recorded run that a name refers to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from orch_node.protocol.record import RunRecord

from orchestrator.operations.runs import find_live
from orchestrator.runs import store
from orchestrator.runs.rows import row_of
from orchestrator.targets import registry
from orchestrator.targets.interface import RunList, ignore
from tests.support.recorded import make_outcome, make_run, write_json
from tests.unit.runs.test_record import RECORD

OLDEST, FIRST, SECOND, THIRD = (f"2026010{day}-120000-qa-0000" for day in (1, 2, 3, 4))


def test_last_is_never_a_refused_run(tmp_path: Path) -> None:
    make_run(tmp_path, FIRST, created=1.0)
    refused = make_run(tmp_path, SECOND, created=2.0)
    write_json(refused / "outcome.json", make_outcome("refused"))
    assert store.find(tmp_path, "last").id == FIRST
    assert store.find(tmp_path, SECOND).id == SECOND


class Handle:
    """A run elsewhere that has ended, as its node reports when it is asked."""

    def __init__(self, record: RunRecord, folder: Path) -> None:
        self.record, self.folder, self.notify = record, folder, ignore

    def finish(self) -> None:
        if self.record.run_id == SECOND:
            write_json(self.folder / "outcome.json", make_outcome())


class Target:
    """A target whose nodes know one run, which `open` finds without another query."""

    def handle(self, record: RunRecord, folder: Path) -> Handle:
        return Handle(record, folder)

    def list_runs(self, inventory: str) -> RunList:
        row = row_of(RECORD, state="running", nodes=(), progress="", folder="")
        return RunList(rows=(row,), open=lambda base, name, notify: Handle(replace(RECORD, run_id=name), base))  # type: ignore[arg-type, return-value]


def test_the_newest_live_run_is_found_after_runs_elsewhere_were_refreshed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = {"node": "far", "via": ["ssh", "far"]}
    for second, run in enumerate((OLDEST, FIRST, SECOND, THIRD)):
        changes = {"node0": far} if run in (SECOND, THIRD) else {}
        folder = make_run(tmp_path, run, created=float(second), **changes)
        if run != THIRD:
            (folder / "outcome.json").unlink()
    monkeypatch.setattr(registry, "target_of", lambda record: Target())
    handle, other_runs = find_live(tmp_path, "last", None, ignore)
    assert (handle.record.run_id, other_runs) == (FIRST, (OLDEST,))
    assert store.load(tmp_path / SECOND).state == "done"


def test_the_nodes_of_an_inventory_are_queried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "target_at", lambda inventory: Target())
    handle, other_runs = find_live(tmp_path, "last", "lab", ignore)
    assert (handle.record.run_id, other_runs) == (RECORD.run_id, ())
