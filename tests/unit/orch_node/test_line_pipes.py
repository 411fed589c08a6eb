"""Read whole lines from several pipes."""

from __future__ import annotations

import os

from orch_node.line_pipes import Pipes


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
