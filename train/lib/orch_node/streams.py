"""Marks in the log of a rank that tell its standard error from its standard output.

The log has both in the order in which they were written. A mark precedes each piece of a line that went to standard
error; the end of a line also ends the mark. Terminals show nothing of a mark, a string for applications (ECMA-48).
"""

from __future__ import annotations

import os
import re
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

from orch_node.atomic_write import write_all

STDOUT, STDERR = "stdout", "stderr"
MARKS = {STDOUT: "\x1b_1\x1b\\", STDERR: "\x1b_2\x1b\\"}
MARK = re.compile("(" + "|".join(map(re.escape, MARKS.values())) + ")")
CHUNK = 1 << 16
DRAIN_SECONDS = 5.0
TIME_SECONDS = 0.01  # between two recorded times


def split(line: str) -> list[tuple[str, str]]:
    """Return the pieces of a line, each with its stream; the last one, which has the end of the line, may be empty."""
    text, *marked = MARK.split(line)
    pieces = [(text, STDOUT)]
    for mark_text, text in zip(marked[::2], marked[1::2]):
        pieces.append((text, STDERR if mark_text == MARKS[STDERR] else STDOUT))
    return [*(piece for piece in pieces[:-1] if piece[0]), pieces[-1]]


def mark(text: str, stream: str) -> str:
    """Return a piece of a line with the mark of its stream."""
    return f"{MARKS[STDERR]}{text}" if stream == STDERR else text


def without_marks(text: str) -> str:
    return MARK.sub("", text)


class LogWriter:
    """Writes what a rank prints to its log, from two pipes, in a thread.

    A second file, `.times`, has lines `POSITION TIME`: from this byte on, the log was written at this time or later.

    Attributes:
        stdout: the descriptor for the rank's standard output.
        stderr: the descriptor for its standard error.
    """

    def __init__(self, path: Path, on_error: Callable[[OSError], None]) -> None:
        """Open the log and create the pipes.

        Args:
            path: the log, to which text is appended.
            on_error: called once if the log cannot be written; then the pipes are closed.

        Raises:
            OSError: if the log cannot be opened.
        """
        path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.log, self.times = (os.open(name, flags, 0o600) for name in (path, path.with_suffix(".times")))
        self.size = os.fstat(self.log).st_size
        self.recorded_at = 0.0
        self.on_error = on_error
        self.read_stdout, self.stdout = os.pipe()
        self.read_stderr, self.stderr = os.pipe()
        self.read_end, self.write_end = os.pipe()
        self.unfinished: str | None = None  # the stream of the last piece, if that has no end of line
        self.thread = threading.Thread(target=self.run, daemon=True)

    def begin(self) -> None:
        """Start writing, after the rank has its descriptors."""
        os.close(self.stdout)
        os.close(self.stderr)
        self.thread.start()

    def drain(self) -> None:
        """Write what the rank has printed until now, and stop, although its children may hold the pipes open."""
        os.close(self.write_end)
        self.thread.join(DRAIN_SECONDS)

    def run(self) -> None:
        """Write until all pipes are closed, or nothing is left after drain()."""
        poller = select.poll()  # select() takes no descriptors from 1024 on, of which a launcher may leave many
        streams = {self.read_stdout: STDOUT, self.read_stderr: STDERR}
        for descriptor in (*streams, self.read_end):
            poller.register(descriptor, select.POLLIN)
        is_ending = False
        try:
            while streams:
                ready = [descriptor for descriptor, _ in poller.poll(0 if is_ending else None)]
                if self.read_end in ready:
                    is_ending = True
                    poller.unregister(self.read_end)
                elif not ready:
                    break
                for descriptor in [descriptor for descriptor in streams if descriptor in ready]:
                    if data := os.read(descriptor, CHUNK):
                        self.write(data, streams[descriptor])
                    else:
                        poller.unregister(descriptor)
                        del streams[descriptor]
        except OSError as error:
            self.on_error(error)
        for descriptor in (self.read_stdout, self.read_stderr, self.read_end, self.log, self.times):
            os.close(descriptor)

    def write(self, data: bytes, stream: str) -> None:
        """Write a piece of a stream to the log, with marks."""
        needs_mark = self.unfinished not in (None, stream) or (stream == STDERR and self.unfinished is None)
        marked = MARKS[stream].encode() + data if needs_mark else data
        if stream == STDERR:
            error_mark = MARKS[STDERR].encode()
            marked = marked[:-1].replace(b"\n", b"\n" + error_mark) + marked[-1:]
        self.unfinished = None if data.endswith(b"\n") else stream
        if abs((now := time.time()) - self.recorded_at) >= TIME_SECONDS:
            os.write(self.times, f"{self.size} {now:.3f}\n".encode())
            self.recorded_at = now
        self.size += len(marked)
        write_all(self.log, marked)
