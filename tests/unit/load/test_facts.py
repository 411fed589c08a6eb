"""Check that the recorded facts of a node are read unchanged or rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.load.records import DamagedRecord, parse_record, read_record, render_record
from tests.support.node_responses import make_reported_facts


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record_values = make_reported_facts() | {
        "root": "/opt/orch",
        "stack": "current",
        "address": "10.0.0.1",
        "connection": {"host": "10.0.0.1", "port": "22"},
        "future": 1,
    }
    (tmp_path / "node0.json").write_text(render_record(parse_record(record_values, "node0")))
    record = read_record(tmp_path / "node0.json")
    assert (record.root, record.hostname, record.connection and record.connection.port) == ("/opt/orch", "node0", "22")


def test_altered_record_is_rejected(tmp_path: Path) -> None:
    for changes in (
        {"address": "10.0.0.1\nORCH_END_OF_FILE\nid"},
        {"root": "relative"},
        {"stack": "../../x"},
        {"connection": {"host": "a\nb"}},
        {"detours": {"node1": "eth0; id"}},
        {"route": "a b"},
    ):
        (tmp_path / "node0.json").write_text(json.dumps(make_reported_facts() | changes))
        with pytest.raises(DamagedRecord, match="cannot be read"):
            read_record(tmp_path / "node0.json")
