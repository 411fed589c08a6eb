"""Steps that are done on several nodes at once."""

from __future__ import annotations

import pytest
from orch_node.protocol.record import RunNode

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.execute import on_all


def test_failures_are_grouped_by_reason_with_the_hint_of_the_first_node() -> None:
    connections = {name: Ssh(name, None) for name in ("a1", "a2", "c")}

    def fail(node: RunNode) -> None:
        reason = "does not answer" if node.node == "c" else "is full."
        raise ConnectionLost(f"{node.node} {reason}", hint=f"Look at {node.node}.")

    with pytest.raises(ExecuteError) as exc_info:
        on_all(tuple(RunNode(node=name) for name in connections), connections, fail)
    assert exc_info.value.message == "a1, a2 is full; c does not answer."
    assert exc_info.value.hint == "Look at a1."
