"""Read whole lines from several programs in one thread."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

MAX_LINE_BYTES = 1 << 24  # bytes: the stack traces of a node with several hundred ranks fit
MAX_LAUNCHER_LINE_BYTES = 1 << 20


class Pipes:
    """Pipes whose whole lines are passed to handlers; lines that are too long are divided."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()

    def add(self, descriptor: int, handle_line: Callable[[bytes], object], max_bytes: int = MAX_LINE_BYTES) -> None:
        """Read a pipe until its end.

        Args:
            descriptor: of the pipe.
            handle_line: called with each line.
            max_bytes: of a line; a longer one is divided.
        """
        self.selector.register(descriptor, selectors.EVENT_READ, (handle_line, max_bytes, bytearray()))

    def drop(self, descriptor: int) -> None:
        """Stop reading a pipe."""
        if self.open(descriptor):
            self.selector.unregister(descriptor)

    def pump(self, seconds: float) -> bool:
        """Wait for data for at most this many seconds, and pass complete lines on; return whether there was any."""
        ready = self.selector.select(seconds)
        for key, _ in ready:
            try:
                chunk = os.read(key.fd, 1 << 16)
            except ConnectionError:  # a socket whose other end has died
                chunk = b""
            if not chunk:
                self.drop(key.fd)
                continue
            handle_line, max_bytes, pending = key.data
            # The time is linear in the size of the chunk, however long the unfinished line is.
            *ends, remainder = chunk.split(b"\n")
            for end in ends:
                line = bytes(pending) + end + b"\n"
                pending.clear()
                handle_line(line)
            pending += remainder
            if len(pending) > max_bytes:
                handle_line(bytes(pending) + b"\n")
                pending.clear()
        return bool(ready)

    def open(self, descriptor: int) -> bool:
        """Return whether the end of a pipe has not been reached."""
        return descriptor >= 0 and descriptor in self.selector.get_map()
