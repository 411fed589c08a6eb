"""Events as lines of the timeline."""

from __future__ import annotations

from orch_node.protocol.events import Ended, Launched
from orch_node.protocol.outcome import NodeEnd

from orchestrator.runs import timeline


def test_numbers_have_their_noun_in_the_singular_or_the_plural() -> None:
    for event, expected in (
        (Launched(ranks=1, nodes=("a",)), "started 1 rank on a"),  # one rank
        (Launched(ranks=2, nodes=("a", "b")), "started 2 ranks on a, b"),  # two ranks
        (Ended(nodes={"a": NodeEnd(ended=1)}), "a: ended 1 process in 0.0 s"),  # one process
        (Ended(nodes={"a": NodeEnd(ended=2)}), "a: ended 2 processes in 0.0 s"),  # two processes
    ):
        (line,) = timeline.describe_event(event)
        assert line.startswith(expected)
