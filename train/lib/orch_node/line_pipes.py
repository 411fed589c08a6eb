"""Whole lines from several programs at once, in one thread."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

LONGEST = 1 << 24  # bytes: the stack traces of a node with several hundred ranks fit
LONGEST_OF_LAUNCHER = 1 << 20


class Pipes:
    """Reads pipes as they fill and hands on each whole line; of one that grows for ever, pieces. At
    its end a pipe is forgotten."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.pending: dict[int, bytearray] = {}
        self.takers: dict[int, Callable[[bytes], None]] = {}
        self.longest: dict[int, int] = {}

    def add(self, descriptor: int, take: Callable[[bytes], None], longest: int = LONGEST) -> None:
        """`longest`: bytes of a line that are waited for."""
        self.selector.register(descriptor, selectors.EVENT_READ)
        self.pending[descriptor], self.takers[descriptor] = bytearray(), take
        self.longest[descriptor] = longest

    def drop(self, descriptor: int) -> None:
        if descriptor in self.takers:
            self.selector.unregister(descriptor)
            del self.takers[descriptor], self.pending[descriptor], self.longest[descriptor]

    def pump(self, seconds: float) -> None:
        """Wait for at most this long, then hand on what is there."""
        for key, _ in self.selector.select(seconds):
            descriptor = key.fd
            try:
                chunk = os.read(descriptor, 1 << 16)
            except ConnectionError:  # a socket whose other end has died
                chunk = b""
            if not chunk:
                self.drop(descriptor)
                continue
            take = self.takers[descriptor]
            for line in self.complete_lines(descriptor, chunk):
                take(line)

    def complete_lines(self, descriptor: int, chunk: bytes) -> list[bytes]:
        """Add a chunk to the unfinished line of a pipe, and return the lines that are complete.

        The time is linear in the size of the chunk, however long the unfinished line is.
        """
        pending = self.pending[descriptor]
        *ends, remainder = chunk.split(b"\n")
        lines = []
        for end in ends:
            lines.append(bytes(pending) + end + b"\n")
            pending.clear()
        pending += remainder
        if len(pending) > self.longest[descriptor]:
            lines.append(bytes(pending) + b"\n")
            pending.clear()
        return lines

    def open(self, descriptor: int) -> bool:
        return descriptor in self.takers
