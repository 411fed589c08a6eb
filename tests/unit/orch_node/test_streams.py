"""The log of a rank has both of its streams, and each can be read again as it was written; lines of pipes are whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from orch_node.line_pipes import Pipes
from orch_node.streams import STDERR, STDOUT, LogWriter, without_marks
from orch_node.tail import Tail

from orchestrator.runs.logs import LineParser, LogLine

PIECES = st.lists(st.tuples(st.sampled_from((STDOUT, STDERR)), st.text("ab \n\r", min_size=1, max_size=5)), max_size=12)


def make_writer(path: Path) -> tuple[LogWriter, list[OSError]]:
    errors: list[OSError] = []
    return LogWriter(path, errors.append), errors


def read_lines(path: Path) -> list[LogLine]:
    """Return the lines of a log as `orch logs` shows them."""
    parser, tail, lines = LineParser(), Tail(path), []
    for is_last in (False, True):
        while texts := tail.lines(last=is_last):
            lines += [line for text in texts for line in parser.parse(0, "node0", text)]
    return [*lines, *parser.end()]


@given(PIECES)
def test_each_stream_is_read_as_it_was_written(tmp_path: Path, pieces: list[tuple[str, str]]) -> None:
    path = tmp_path / "rank-0.log"
    path.unlink(missing_ok=True)
    writer, _ = make_writer(path)
    for stream, text in pieces:
        writer.write(text.encode(), stream)
    lines = read_lines(path)
    for name in (STDOUT, STDERR):
        expected = "".join(text for stream, text in pieces if stream == name).removesuffix("\n")
        assert "\n".join(line.text for line in lines if line.stream == name) == expected
    content = "".join(text for _, text in pieces)
    assert without_marks(path.read_bytes().decode()) == content, "nothing else is in the log"
    for descriptor in (writer.log, writer.times, writer.stdout, writer.stderr, writer.read_stdout, writer.read_stderr):
        os.close(descriptor)
    os.close(writer.read_end)
    os.close(writer.write_end)


def test_writer_does_not_wait_for_a_child_that_keeps_the_pipes(tmp_path: Path) -> None:
    writer, errors = make_writer(tmp_path / "rank-0.log")
    command = ["sh", "-c", "sleep 60 & echo out; echo error >&2; echo $!"]
    process = subprocess.Popen(command, stdout=writer.stdout, stderr=writer.stderr)
    writer.begin()
    process.wait(60)
    writer.drain()
    assert not writer.thread.is_alive()
    lines = {(line.stream, line.text) for line in read_lines(tmp_path / "rank-0.log")}
    assert {(STDOUT, "out"), (STDERR, "error")} < lines
    (child,) = (int(text) for _, text in lines if text.isdigit())
    os.kill(child, 9)
    assert not errors


def test_log_that_cannot_be_written_ends_the_rank(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    writer, errors = make_writer(tmp_path / "full")
    command = [sys.executable, "-uc", "while True: print('x' * 100)"]
    process = subprocess.Popen(command, stdout=writer.stdout, stderr=writer.stderr)
    writer.begin()
    assert process.wait(60) != 0
    writer.drain()
    assert [error.strerror for error in errors] == ["No space left on device"]


def test_lines_arrive_whole_however_they_are_divided() -> None:
    for limit, expected in (
        (100, [b"one\n", b"\n", b"a longer line\n"]),  # whole-lines
        (4, [b"one\n", b"\n", b"a lon\n", b"ger l\n", b"ine\n"]),  # pieces-of-a-long-line
    ):
        reader, writer = os.pipe()
        pipes, lines = Pipes(), list[bytes]()
        pipes.add(reader, lines.append, limit)
        for byte in b"one\n\na longer line\nno end":
            os.write(writer, bytes([byte]))
            pipes.pump(1.0)
        os.close(writer)
        pipes.pump(1.0)
        assert not pipes.open(reader)
        os.close(reader)
        assert lines[: len(expected)] == expected
