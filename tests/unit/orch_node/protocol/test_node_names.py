"""Name many nodes in one text."""

from __future__ import annotations

from orch_node.protocol.node_names import fold_by_text


def test_name_within_a_longer_name_is_not_replaced() -> None:
    assert fold_by_text({"a": "a: no answer from data-a or a1", "b": "b: no answer from data-a or a1"}) == [
        ("a, b", "a, b: no answer from data-a or a1")
    ]
