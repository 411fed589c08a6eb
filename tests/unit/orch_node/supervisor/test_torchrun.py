"""The ends of torchrun on the nodes of a run."""

from __future__ import annotations

from unittest import mock

from orch_node.line_pipes import Pipes
from orch_node.supervisor.torchrun import await_end


def test_failure_of_the_last_node_to_end_is_returned() -> None:
    """Let a node fail right after it was seen running."""
    polls = iter((None, None, 1))
    ended, failing = mock.Mock(), mock.Mock()
    ended.poll.return_value, failing.poll.side_effect = 0, polls.__next__
    assert await_end({"node0": ended, "node1": failing}, Pipes(), []) == {"node0": 0, "node1": 1}
