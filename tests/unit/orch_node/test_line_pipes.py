"""Read whole lines from several pipes."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st
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


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_no_byte_is_lost_or_repeated(chunks: list[bytes]) -> None:
    pipes = Pipes()
    pipes.pending[0], pipes.max_bytes[0] = bytearray(), 1 << 20
    lines = [line for chunk in chunks for line in pipes.complete_lines(0, chunk)]
    assert b"".join(lines) + bytes(pipes.pending[0]) == b"".join(chunks)
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
