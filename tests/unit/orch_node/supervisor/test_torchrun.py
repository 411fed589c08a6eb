"""The rendezvous of torchrun: nodes accept only states that are signed with the key of the run."""

from __future__ import annotations

from unittest import mock

import pytest
from orch_node.line_pipes import Pipes
from orch_node.supervisor.torchrun import SignedBackend, await_end, signature


class MemoryBackend:
    """A backend of torch's rendezvous that stores one state."""

    def __init__(self, state: bytes | None = None) -> None:
        self.state = state

    def get_state(self) -> tuple[bytes, bytes] | None:
        return None if self.state is None else (self.state, self.state)

    def set_state(self, state: bytes, token: object = None) -> tuple[bytes, bytes, bool]:
        accepted = token == self.state
        self.state = state if accepted else self.state
        return self.state, self.state, accepted


def test_nodes_with_the_same_key_share_a_state() -> None:
    memory = MemoryBackend()
    first, second = (SignedBackend(memory, b"key", ValueError) for _ in range(2))
    assert first.get_state() is None
    state, _, accepted = first.set_state(b"state")
    assert (state, accepted) == (b"state", True)
    assert second.get_state()[0] == b"state"
    state, _, accepted = second.set_state(b"other", b"an old token")
    assert (state, accepted) == (b"state", False)


def test_state_of_a_stranger_is_not_used() -> None:
    for state in (b"", b"pickle", signature(b"other key", b"pickle") + b"pickle", b"x" * 99):
        signed = SignedBackend(MemoryBackend(state), b"key", ValueError)
        with pytest.raises(ValueError, match="not a node of this run"):
            signed.get_state()
        with pytest.raises(ValueError, match="not a node of this run"):
            signed.set_state(b"mine", b"an old token")


def test_failure_of_the_last_node_to_end_is_returned() -> None:
    """Let a node fail right after it was seen running."""
    polls = iter((None, None, 1))
    ended, failing = mock.Mock(), mock.Mock()
    ended.poll.return_value, failing.poll.side_effect = 0, polls.__next__
    assert await_end({"node0": ended, "node1": failing}, Pipes(), []) == {"node0": 0, "node1": 1}
