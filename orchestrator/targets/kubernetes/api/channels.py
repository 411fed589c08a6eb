"""The channels of an `exec`, frame by frame.

The client's own reading gathers all frames that are there before it gives any, and copies what it
has for each of them: a large file takes the square of its size, and memory for all of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from orchestrator.errors import ConnectionLost

STDOUT, STDERR, STATUS = 1, 2, 3
NOTHING = -1
TICK_SECONDS = 1.0


class Channels:
    """What a program in a pod says. `socket`: the websocket, which is closed with this."""

    def __init__(self, socket: Any, pod: str) -> None:
        self.socket = socket
        self.pod = pod
        self.status = b""
        socket.settimeout(TICK_SECONDS)

    def __enter__(self) -> Channels:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.shutdown()  # without waiting for what a program that is left alone still says

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """(channel, bytes) as they come, until the program has ended; (NOTHING, b"") once a second
        while it is silent. Raises ConnectionLost."""
        from websocket import ABNF, WebSocketException, WebSocketTimeoutException

        while True:
            try:
                opcode, frame = self.socket.recv_data_frame(True)
            except WebSocketTimeoutException:
                yield NOTHING, b""
                continue
            except (WebSocketException, OSError) as error:
                raise ConnectionLost(f"The connection to {self.pod} ended: {error}.") from None
            if opcode == ABNF.OPCODE_CLOSE:
                return
            if opcode not in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) or not frame.data:
                continue
            if frame.data[0] == STATUS:
                self.status += frame.data[1:]
            else:
                yield frame.data[0], frame.data[1:]

    def code(self) -> int:
        """The program's exit code. Raises ConnectionLost where the stream did not say how it
        ended."""
        try:
            status = json.loads(self.status)
            if status["status"] == "Success":
                return 0
            return int(status["details"]["causes"][0]["message"])
        except (TypeError, KeyError, IndexError, ValueError):
            raise ConnectionLost(f"The connection to {self.pod} ended.") from None
