"""Check that changed, repeated or missing lines between a supervisor and an agent are refused."""

from __future__ import annotations

import pytest
from orch_node.protocol.batch import AGENT, SUPERVISOR, SignatureError, SignedLines, connection_key


def make_ends() -> tuple[SignedLines, SignedLines]:
    """Return both ends of a connection: the supervisor's and the agent's."""
    return (
        SignedLines(b"key", sender=SUPERVISOR, receiver=AGENT),
        SignedLines(b"key", sender=AGENT, receiver=SUPERVISOR),
    )


def test_signed_line_arrives_as_it_was() -> None:
    supervisor, agent = make_ends()
    for line in (b"one\n", b"two\n", b"two\n"):
        assert agent.verify(supervisor.sign(line)) == line
        assert supervisor.verify(agent.sign(line)) == line


def test_line_that_is_changed_repeated_left_out_or_returned_is_refused() -> None:
    supervisor, agent = make_ends()
    first, second = supervisor.sign(b"one\n"), supervisor.sign(b"two\n")
    for line in (first.replace(b"one", b"own"), second, b"one\n"):
        with pytest.raises(SignatureError):
            agent.verify(line)
    assert agent.verify(first) == b"one\n"
    with pytest.raises(SignatureError):
        agent.verify(first)
    with pytest.raises(SignatureError):
        supervisor.verify(first)


def test_keys_of_connections_differ() -> None:
    keys = {connection_key(*parts) for parts in (("k", "a", "b"), ("k", "b", "a"), ("l", "a", "b"))}
    assert len(keys) == 3
