"""Name many nodes in one text."""

from __future__ import annotations

from orch_node.protocol.node_names import fold_by_text


def test_nodes_with_the_same_text_are_folded() -> None:
    texts = {f"node{index}": f"node{index} does not answer (timed out)" for index in range(1000)}
    texts["node7"] = "node7: disk full"
    assert fold_by_text(texts) == [
        ("node[0-6,8-999]", "node[0-6,8-999] does not answer (timed out)"),
        ("node7", "node7: disk full"),
    ]


def test_name_within_a_longer_name_is_not_replaced() -> None:
    assert fold_by_text({"a": "a: no answer from data-a or a1", "b": "b: no answer from data-a or a1"}) == [
        ("a, b", "a, b: no answer from data-a or a1")
    ]
