"""Read supervisor.json."""

from __future__ import annotations

import json

import pytest
from orch_node.protocol import outcome
from orch_node.protocol.values import ProtocolError


def test_supervisor_pid_must_be_the_id_of_one_process() -> None:
    """Reject these ids: kill(-1) signals all processes of a user and kill(0) those of a group."""
    for pid in (-1, 0, 1, 2**40):
        with pytest.raises(ProtocolError, match="pid"):
            outcome.parse_supervisor(json.dumps({"pid": pid, "started": 1.0}))
