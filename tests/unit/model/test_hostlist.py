"""Ranges of host names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model.hosts import NodeCount, NodePattern, expand, fold, parse_nodes, ranges


def test_range_is_expanded_unless_it_is_a_pattern_of_ansible() -> None:
    for pattern, names in (
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("node[8-10]", ["node8", "node9", "node10"]),
        ("node[08-10]", ["node08", "node09", "node10"]),
        ("rack[1:2]-a.lab", ["rack1-a.lab", "rack2-a.lab"]),
        ("!node[1-2]", ["!node1", "!node2"]),
        ("node[3-1]", []),
        ("n[001,003-005]", ["n001", "n003", "n004", "n005"]),
        ("!n[1,3].lab", ["!n1.lab", "!n3.lab"]),
        ("node*", ["node*"]),
        ("~node[1-3]", ["~node[1-3]"]),
        ("web[0-1]", ["web[0-1]"]),
        ("node[abc]", ["node[abc]"]),
    ):
        assert expand(pattern, lambda name: name == "web") == names


def test_many_names_are_folded_and_few_are_listed() -> None:
    assert fold(["node0", "node1"]) == "node0, node1"
    names = [*(f"node{number}" for number in range(9)), "gpu", "node11"]
    assert fold(names) == "node[0-8],gpu,node11"
    assert (
        fold([f"n{number:03}" for number in (*range(1, 18, 2), 18, 20)])
        == "n[001,003,005,007,009,011,013,015,017-018,020]"
    )
    names = [f"cn{number:03}.rack2.example.org" for number in range(8, 108)]
    assert fold([*names, "cn107.rack3.example.org"]) == "cn[008-107].rack2.example.org,cn107.rack3.example.org"


@given(st.lists(st.from_regex(r"[ab]{1,2}[0-9]{1,3}(\.lab[0-2]{1,2})?", fullmatch=True), unique=True))
def test_folded_names_expand_to_the_same_names(names: list[str]) -> None:
    assert [name for text in ranges(tuple(names)) for name in expand(text, lambda _: False)] == names


def test_nodes_are_a_number_or_a_pattern() -> None:
    for text, nodes in (("4", NodeCount(4)), ("0", NodeCount(0)), ("node[1-3],lab", NodePattern("node[1-3],lab"))):
        assert parse_nodes(text) == nodes
        assert str(parse_nodes(text)) == text


def test_a_number_too_long_for_a_count_is_a_pattern() -> None:
    assert parse_nodes("9" * 5000) == NodePattern("9" * 5000), "int() raises an error"
