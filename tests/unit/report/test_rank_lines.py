"""Complete lines of ranks and the states of an unfinished line."""

from __future__ import annotations

from pathlib import Path

import pytest
from orch_node.pod import relay
from orch_node.tail import CHUNK, Tail

from orchestrator.report import rank_lines
from orchestrator.report.rank_lines import RankLines
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


def test_tail_divides_an_endless_progress_bar_between_its_states(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\r%06d of 900000" % 1 * (CHUNK // 8))
    tail = Tail(log)
    (line,) = tail.lines()
    assert line.endswith("of 900000\r")


def test_rank_lines_print_what_a_terminal_finally_shows() -> None:
    printed: list[str] = []
    lines = RankLines(lambda text, stream: printed.append(text), lambda line: f"[{line.rank}] ", is_live=False)
    lines.add([make_line("\r 10%\r 20%"), make_line("over")])
    assert printed == ["[0]  20%\n[0] over"]


def test_rank_lines_print_a_state_only_after_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    lines = RankLines(lambda text, stream: printed.append(text), lambda line: "", is_live=False)
    lines.add([make_line("10%", finished=False)])
    assert printed == []
    monkeypatch.setattr(rank_lines, "STATE_SECONDS", 0.0)
    lines.add([make_line("20%", finished=False)])
    assert printed == ["20%"]


def test_rank_lines_keep_states_for_a_terminal_until_the_line_ends() -> None:
    printed: list[str] = []
    lines = RankLines(lambda text, stream: printed.append(text), lambda line: "", is_live=True)
    lines.add([make_line("10%", finished=False)])
    assert (printed, lines.states) == ([], {(0, "stdout"): "10%"})
    lines.add([make_line("\r10%\r20%")])
    assert (printed, lines.states) == (["20%"], {})


def test_pod_prints_the_state_of_a_progress_bar_after_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    pod = relay.Relay(tmp_path, ranks=[0])
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/rank-0.log").write_bytes(b"\r 10%\r 20%")
    pod.pump()
    assert capfdbinary.readouterr().out == b""
    monkeypatch.setattr(relay, "STATE_SECONDS", 0.0)
    pod.pump()
    assert capfdbinary.readouterr().out == b"[0]  20%\n"
