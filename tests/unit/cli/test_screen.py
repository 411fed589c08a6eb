"""Text from nodes is printed as text and never controls the terminal."""

from __future__ import annotations

import ast
import io
import json
import os
import shlex
import sys
import time
from pathlib import Path

import pexpect
import pytest
from orch_node.protocol.events import Joined, Launched, Waiting
from typer.testing import CliRunner

from orchestrator import screen
from orchestrator.cli.main import make_app
from orchestrator.report import live
from orchestrator.runs.logs import LogLine
from orchestrator.screen import escape_control_chars
from tests.support.recorded import make_run, write_events
from tests.unit.project.test_architecture import FILES, ROOT


def test_what_moves_a_terminal_is_shown() -> None:
    for text, shown in (
        ("plain\ttext\nüö█ 日本 🎉", "plain\ttext\nüö█ 日本 🎉"),
        ("\x1b[2J\x1b]0;x\x07", r"\x1b[2J\x1b]0;x\x07"),
        ("a\rb\r\nc", "a\\x0db\nc"),
        ("\x9b31m\x7f\x00", r"\x9b31m\x7f\x00"),
        ("\u202eevil\u2066", r"\u202eevil\u2066"),
        ("\ud800", r"\ud800"),
        ("\u2028", r"\u2028"),
    ):
        assert escape_control_chars(text) == shown


def test_lines_of_ranks_are_text_and_an_overwritten_bar_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        LogLine(rank=0, node="node0", text="[b] \x1b[2J"),
        LogLine(rank=12, node="node0", text="\r 10%|#\r100%|##########\r"),
    ]
    live.Screen(of_ranks="0").lines(lines)
    assert capsys.readouterr().out == "[b] \\x1b[2J\n100%|##########\n"
    live.Screen(of_ranks="all").lines(lines)
    assert capsys.readouterr().out == "[0] [b] \\x1b[2J\n[12] 100%|##########\n"
    live.Screen(of_ranks="0", keeps_stdout=True).lines(lines[:1])
    assert capsys.readouterr().err == "[b] \\x1b[2J\n"


def test_one_line_shows_that_ranks_start(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for events, lines in (
        ([], 1),  # silence
        ([Launched(ranks=2), Joined(rank=0)], 1),  # one of two has joined
        ([Launched(ranks=1), Joined(rank=0)], 0),
        ([Waiting(text="the job waits")], 0),
        ([Launched(ranks=1), Joined(rank=0), Launched(ranks=1)], 1),  # again
        ([None, Launched(ranks=1), Joined(rank=0), Launched(ranks=1), None], 2),  # again after the line
    ):
        monkeypatch.setattr(live, "START_SECONDS", 0.1)
        shown = live.Screen()
        shown.begin([])
        for event in (*events, None):
            if event is None:
                time.sleep(0.6)
            else:
                shown.show(event)
        shown.end()
        assert capsys.readouterr().err.count("starting the ranks") == lines


# Run commands in child processes of one that has imported orch.
RUN_COMMANDS = """
import json, os, sys
from orchestrator.cli.main import main
for command in json.loads(sys.argv[1]):
    if not os.fork():
        sys.argv = ["orch", *command]
        main()
    os.wait()
"""


def test_outputs_on_a_terminal_have_no_escaped_codes(tmp_path: Path) -> None:
    """Print scores and a log that contain control characters."""
    run = make_run(tmp_path / "runs", ranks=1, nodes=1, seconds=3)
    scores = {"before": {"f1": 1.0}, "after": {"f1": 2.0, "[/x]\x1b": 1.0}}
    write_events(run, [{"event": "result", "rank": 0, "time": 1.0, **scores}], "a")
    (run / "ranks/rank-0.log").write_bytes(b"one \x1b[31mred\x1b[0m\n\xff two\n")
    (tmp_path / "own.py").touch()
    commands = (
        ("attach",),  # the end of train
        ("runs", "show"),
        ("report",),
        ("logs",),
        ("nodes", "local"),
        ("train", "own.py", "--dry-run"),
        ("train", "nosuch.py"),
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "ORCH_RUNS_DIR")}
    homes = {name: str(tmp_path / "home") for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME")}
    program = shlex.join([sys.executable, "-c", RUN_COMMANDS, json.dumps(commands)])
    variables = {**environment, **homes, "TERM": "xterm-256color"}
    shown = pexpect.run(program, timeout=300, cwd=tmp_path, env=variables, encoding="utf-8")
    assert shown.count("Before") == 2
    texts = ("report.html", "NODE", "ranks", "error: There is no script", "\x1b[")
    for text in (*texts, "[/x]\\x1b", "one \\x1b[31mred\\x1b[0m", "\ufffd two"):
        assert text in shown
    assert shown.replace("[/x]\\x1b", "").count("\\x1b") == shown.count("one \\x1b") * 2, "no code of orch is escaped"
    assert "Traceback" not in shown
    result = CliRunner().invoke(make_app(), ["logs", "--runs-dir", str(tmp_path / "runs"), "--json"])
    assert json.loads(result.output.splitlines()[0])["line"] == "one \x1b[31mred\x1b[0m"


def test_a_program_stays_what_it_is_but_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the unchanged steps to a file, as in `orch train --dry-run > run.sh`."""
    for is_terminal, shown in ((False, "echo '\x1b'\n"), (True, "echo '\\x1b'\n")):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda is_terminal=is_terminal: is_terminal, raising=False)
        monkeypatch.setattr("sys.stdout", stream)
        screen.print_text("echo '\x1b'", program=True)
        assert stream.getvalue() == shown


def printing(path: Path) -> set[str]:
    """Return the calls that print without the one function that writes to the screen."""
    calls: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            to_file = any(word.arg == "file" and ast.unparse(word.value) == "log" for word in node.keywords)
            if name in ("print", "typer.echo", "click.echo", "Console") and not to_file:
                calls.add(name)
    return calls


def test_text_goes_to_the_screen_in_one_place() -> None:
    assert [path for path in FILES if printing(path)] == [ROOT / "screen.py"]
