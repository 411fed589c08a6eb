from __future__ import annotations

import json
from pathlib import Path

from orchestrator.runs.store import load
from tests.recorded import place, plan


def test_an_event_that_is_on_its_way_is_none_yet(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(
        json.dumps(plan(tmp_path, [place(rank, 3) for rank in range(3)]))
    )
    run = load(tmp_path)
    assert run.events() == []
    lines = [json.dumps({"event": "joined", "rank": rank}) for rank in range(3)]
    path = tmp_path / "events.jsonl"
    path.write_text(f"{lines[0]}\n{lines[1]}\n{lines[2][:9]}")
    assert [event.rank for event in run.events()] == [0, 1]
    path.write_text("\n".join([*lines, ""]))
    assert [event.rank for event in run.events()] == [0, 1, 2]
