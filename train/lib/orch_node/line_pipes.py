"""Whole lines from several programs at once, in one thread."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable

LONGEST = 1 << 26  # bytes: what an agent answers of a node with many ranks fits
LONGEST_OF_LAUNCHER = 1 << 20


class Pipes:
    """Reads pipes as they fill and hands on each whole line; of one that grows for ever, pieces. At
    its end a pipe is forgotten."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.pending: dict[int, bytes] = {}
        self.takers: dict[int, Callable[[bytes], None]] = {}
        self.longest: dict[int, int] = {}

    def add(self, descriptor: int, take: Callable[[bytes], None], longest: int = LONGEST) -> None:
        """`longest`: bytes of a line that are waited for."""
        self.selector.register(descriptor, selectors.EVENT_READ)
        self.pending[descriptor], self.takers[descriptor] = b"", take
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
            *lines, self.pending[descriptor] = (self.pending[descriptor] + chunk).split(b"\n")
            if len(self.pending[descriptor]) > self.longest[descriptor]:
                lines, self.pending[descriptor] = [*lines, self.pending[descriptor]], b""
            take = self.takers[descriptor]
            for line in lines:
                take(line + b"\n")

    def open(self, descriptor: int) -> bool:
        return descriptor in self.takers
