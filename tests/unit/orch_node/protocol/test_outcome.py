"""Read and write outcome.json and supervisor.json."""

from __future__ import annotations

import json

import pytest
from orch_node.protocol import outcome
from orch_node.protocol.outcome import Failure, NodeEnd, Outcome, ProcessRecord
from orch_node.protocol.values import ProtocolError


def test_outcome_is_read_as_it_was_written() -> None:
    remaining_process = ProcessRecord(pid=7, role="rank", name="python3", state="D", rank=1)
    expected = Outcome(
        state="failed",
        first_failure=Failure(rank=1, node="node0", signal="SIGKILL"),
        problem=None,
        launcher_code=1,
        started=1.0,
        ended=2.0,
        attempts=2,
        nodes={"node0": NodeEnd(ended=1, left=(remaining_process,)), "node1": NodeEnd(lost="silent")},
    )
    text = outcome.render(expected)
    assert outcome.parse(text) == expected
    assert json.loads(text)["nodes"]["node1"] == {"lost": "silent"}
    assert "lost" not in json.loads(text)["nodes"]["node0"]


def test_outcome_times_must_be_finite() -> None:
    for value in ("NaN", "1e999", "-1e999"):
        with pytest.raises(ProtocolError, match="ended"):
            outcome.parse('{"state": "done", "started": 1.0, "ended": VALUE}'.replace("VALUE", value))


def test_supervisor_pid_must_be_the_id_of_one_process() -> None:
    """Reject these ids: kill(-1) signals all processes of a user and kill(0) those of a group."""
    for pid in (-1, 0, 1, 2**40):
        with pytest.raises(ProtocolError, match="pid"):
            outcome.parse_supervisor(json.dumps({"pid": pid, "started": 1.0}))
