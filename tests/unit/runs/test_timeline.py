"""Events as lines of the timeline."""

from __future__ import annotations

import pytest
from orch_node.protocol.events import Ended, Event, Launched
from orch_node.protocol.outcome import NodeEnd

from orchestrator.runs import timeline


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(Launched(ranks=1, nodes=("a",)), "started 1 rank on a", id="one rank"),
        pytest.param(Launched(ranks=2, nodes=("a", "b")), "started 2 ranks on a, b", id="two ranks"),
        pytest.param(Ended(nodes={"a": NodeEnd(ended=1)}), "a: ended 1 process in 0.0 s", id="one process"),
        pytest.param(Ended(nodes={"a": NodeEnd(ended=2)}), "a: ended 2 processes in 0.0 s", id="two processes"),
    ],
)
def test_numbers_have_their_noun_in_the_singular_or_the_plural(event: Event, expected: str) -> None:
    (line,) = timeline.describe_event(event)
    assert line.startswith(expected)
