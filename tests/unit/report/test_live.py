"""The live view of a run, and the lines of its ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from orch_node.protocol.events import Failed, Launched, Progress, Restarting, Stalled, Warned
from orch_node.protocol.outcome import Failure
from orch_node.tail import Tail

from orchestrator.report import live, output_lines
from orchestrator.report.output_lines import MAX_LINE_BYTES, NodeOutput, RankLines
from orchestrator.runs.logs import LogLine
from tests.unit.runs.test_tracebacks import SHAPES


def test_progress_shows_the_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    for steps, expected in (
        ([(0, 0), (20, 10), (90, 40)], ["train: 0/40", "train: 10/40 01:00 left", "train: 40/40"]),  # run
        # A restarted run repeats the steps since its checkpoint.
        ([(0, 0), (20, 10), (100, 5), (102, 15), (104, 25)], ["train: 25/40 00:03 left"]),  # restart
        ([(0, None), (100, 20), (110, 30)], ["train: 30/40 00:10 left"]),  # a resumed script that names its phase first
    ):
        screen = live.Screen()
        for seconds, step in steps:
            screen.show(Progress(rank=0, time=1e9 + seconds, phase="train", step=step, steps=40))
        assert capsys.readouterr().err.splitlines()[-len(expected) :] == expected
    for loss, text in ((float("nan"), "nan"), (0.69314, "0.6931"), (3e-5, "3e-05"), (1e300, "1e+300"), (0.0, "0.0000")):
        live.Screen().show(Progress(rank=0, step=3, loss=loss))
        assert f"progress: step 3 loss {text}\n" in capsys.readouterr().err, "it needs no phase"
    screen.show(Stalled(text="x", stands={"zero": "a", "1": "b", "9" * 5000: "c"}))
    assert capsys.readouterr().err == "x\n  rank 1: b\n"


def test_error_is_shown_before_the_ranks_start_again(capsys: pytest.CaptureFixture[str]) -> None:
    screen = live.Screen()
    screen.show(Failed(failure=Failure(rank=1, node="node0", code=1, text=SHAPES)))
    assert "mat1" not in capsys.readouterr().err
    screen.show(Failed(failure=Failure(rank=-1, text="no layout")))
    assert capsys.readouterr().err.splitlines()[0] == "a process without a rank failed"
    screen.show(Failed(failure=Failure(rank=1, node="node0", code=1, text=SHAPES)))
    screen.show(Restarting(attempt=2, of=1))
    lines = capsys.readouterr().err.splitlines()
    assert "    return model(x)" in lines
    assert "mat1 and mat2" in lines[-2]
    assert lines[-1] == "starts again: attempt 2 of 2"
    screen.show(Launched(attempt=2, ranks=2))
    screen.show(Restarting(attempt=3, of=2))  # after a lost node, for example
    assert capsys.readouterr().err.splitlines() == ["starts again: attempt 3 of 3"]


@pytest.mark.parametrize(("shown", "is_printed"), [("none", False), ("1", False), ("0", True), ("all", True)])
def test_warning_of_a_rank_is_shown_once(shown: str, is_printed: bool, capsys: pytest.CaptureFixture[str]) -> None:
    screen = live.Screen(shown)
    for rank in (0, 0, 1):
        screen.show(Warned(rank=rank, text="warning: slow"))
    assert capsys.readouterr().err.splitlines() == ["rank 0: warning: slow"] * (not is_printed)


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
