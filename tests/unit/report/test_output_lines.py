"""Complete lines of ranks and the states of an unfinished line."""

from __future__ import annotations

from pathlib import Path

import pytest
from orch_node.tail import Tail

from orchestrator.report import output_lines
from orchestrator.report.output_lines import MAX_LINE_BYTES, NodeOutput, RankLines
from orchestrator.runs.logs import LogLine


def make_line(text: str, *, finished: bool = True) -> LogLine:
    return LogLine(rank=0, node="node0", text=text, finished=finished)


def test_tail_has_the_state_of_an_unfinished_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"begins\n\r 10%\r 20%\r")
    tail = Tail(log)
    assert (tail.lines(), tail.state) == (["begins"], " 20%")
    log.write_bytes(b"begins\n\r 10%\r 20%\r100%\n")
    assert (tail.lines(), tail.state) == (["\r 10%\r 20%\r100%"], "")


def make_rank_lines(*, is_live: bool = False) -> tuple[RankLines, list[str]]:
    """Return the display of rank lines, and the list of what it prints."""
    printed: list[str] = []
    lines = RankLines(lambda text, stream: printed.append(text), lambda line: f"[{line.rank}] ", is_live=is_live)
    return lines, printed


def test_rank_lines_print_what_a_terminal_finally_shows_and_states_when_due(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, printed = make_rank_lines()
    lines.add([make_line("\r 10%\r 20%"), make_line("over")])
    for state in ("10%", "20%"):
        lines.add([make_line(state, finished=False)])
    assert printed == ["[0]  20%\n[0] over"]
    monkeypatch.setattr(output_lines, "STATE_SECONDS", 0.0)
    lines.add([make_line("30%", finished=False)])
    assert printed[1:] == ["[0] 30%"]
    lines, printed = make_rank_lines()
    # print("loss", 0.1) writes in pieces if Python's output has no buffer, as that of ranks.
    lines.add([make_line("loss", finished=False)])
    lines.add([make_line("loss 0.1")])
    assert printed == ["[0] loss 0.1"], "a line that is read while it is written is printed once"


def test_rank_lines_keep_states_for_a_terminal_until_the_line_ends() -> None:
    lines, printed = make_rank_lines(is_live=True)
    lines.add([make_line("10%", finished=False)])
    assert (printed, lines.states) == ([], {(0, "stdout"): "[0] 10%"})
    lines.add([make_line("\r10%\r20%")])
    assert (printed, lines.states) == (["[0] 20%"], {})


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
    output.receive("node3", 1, b"x" * (MAX_LINE_BYTES + 1))  # a line without an end does not fill the memory
    assert len(capsys.readouterr().out) > MAX_LINE_BYTES


def test_identical_output_of_nodes_is_gathered(capsys: pytest.CaptureFixture[str]) -> None:
    output = NodeOutput(NODES, gather=True)
    for node, parts in {"node1": [b"a\nb"], "far": [b"a\n"], "node2": [b"a", b"\nb"], "node3": [b"a\nb\n"]}.items():
        for part in parts:
            output.receive(node, 1, part)
    assert capsys.readouterr().out == ""
    output.end()
    assert capsys.readouterr().out == "node[1-3]: a\nnode[1-3]: b\nfar: a\n"
