"""The event log and the launcher's log of a run."""

from __future__ import annotations

import json
from pathlib import Path

from orch_node.protocol.events import UnreadableEvent
from orch_node.protocol.outcome import Outcome
from orch_node.supervisor import event_log


def test_event_log_records_only_the_beginning_of_many_unreadable_lines(tmp_path: Path) -> None:
    log = event_log.EventLog(tmp_path, ["node0"])
    for _ in range(event_log.MAX_UNREADABLE_LINES + 5):
        log.record_unreadable(UnreadableEvent(rank=0, text="x"), b"y" * 9000)
    log.end(Outcome(state="done"))
    log.events.close()
    log.launcher_output.close()
    lines = (tmp_path / "launcher.log").read_bytes().splitlines()
    assert (len(lines), max(map(len, lines))) == (1000, 4096 + len(event_log.UNREADABLE_PREFIX))
    event, _ = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert event["count"] == 1005
