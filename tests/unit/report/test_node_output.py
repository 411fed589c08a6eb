"""Print the output of several nodes in whole lines."""

from __future__ import annotations

import pytest

from orchestrator.report.node_output import MAX_LINE_BYTES, NodeOutput

NODES = ("node1", "node2", "node3", "far")


def test_lines_are_printed_whole_with_the_name_of_their_node(capsys: pytest.CaptureFixture[str]) -> None:
    output = NodeOutput(NODES, gather=False)
    output.receive("node1", 1, b"half a ")
    output.receive("node2", 2, b"wrong\n")
    assert capsys.readouterr() == ("", "node2: wrong\n")
    output.receive("node1", 1, "line ü\r\n\n\x1b[31mred".encode())
    assert capsys.readouterr().out == "node1: half a line ü\nnode1: \n"
    output.end()
    assert capsys.readouterr().out == "node1: \\x1b[31mred\n"


def test_line_without_an_end_does_not_fill_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    output = NodeOutput(NODES, gather=False)
    output.receive("node1", 1, b"x" * (MAX_LINE_BYTES + 1))
    assert len(capsys.readouterr().out) > MAX_LINE_BYTES


def test_identical_output_of_nodes_is_gathered(capsys: pytest.CaptureFixture[str]) -> None:
    output = NodeOutput(NODES, gather=True)
    for node, parts in {"node1": [b"a\nb"], "far": [b"a\n"], "node2": [b"a", b"\nb"], "node3": [b"a\nb\n"]}.items():
        for part in parts:
            output.receive(node, 1, part)
    assert capsys.readouterr().out == ""
    output.end()
    assert capsys.readouterr().out == "node[1-3]: a\nnode[1-3]: b\nfar: a\n"
