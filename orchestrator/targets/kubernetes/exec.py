"""Run programs in a pod by `exec`, and read what they print."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.printable import CommandResult, one_line, program_name
from orchestrator.targets.kubernetes.client import KubernetesClient

STDIN, STDOUT, STDERR, STATUS = 0, 1, 2, 3
NO_CHANNEL = -1  # stands for a second without output
TICK_SECONDS = 1.0


class Channels:
    """The output of a program in a pod, frame by frame.

    The client's own reader collects all available frames before it returns any, and copies its
    buffer for each of them, which needs memory and quadratic time for large files.
    """

    def __init__(self, socket: Any, pod: str) -> None:
        self.socket = socket
        self.pod = pod
        self.status = b""
        socket.settimeout(TICK_SECONDS)

    def __enter__(self) -> Channels:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.shutdown()  # do not wait for more output

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield (channel, bytes) as they come, until the program has ended.

        Without output, (NO_CHANNEL, b"") is yielded once a second.

        Raises:
            ConnectionLost: if the connection breaks.
        """
        from websocket import ABNF, WebSocketException, WebSocketTimeoutException

        while True:
            try:
                opcode, frame = self.socket.recv_data_frame(True)
            except WebSocketTimeoutException:
                yield NO_CHANNEL, b""
                continue
            except (WebSocketException, OSError) as error:
                if self.status:  # the program has ended, and the closing handshake fails
                    return
                raise ConnectionLost(f"The connection to {self.pod} ended: {error}.") from None
            if opcode == ABNF.OPCODE_CLOSE:
                return
            if opcode not in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) or not frame.data:
                continue
            if frame.data[0] == STATUS:
                self.status += frame.data[1:]
            else:
                yield frame.data[0], frame.data[1:]

    def send(self, frame: bytes) -> None:
        """Send a frame; do nothing if the connection has ended, which frames() reports."""
        from websocket import WebSocketException

        with suppress(WebSocketException, OSError):
            self.socket.send_binary(frame)

    def code(self) -> int:
        """Return the program's exit code.

        Raises:
            ConnectionLost: if the stream has ended without it.
        """
        try:
            status = json.loads(self.status)
            if status["status"] == "Success":
                return 0
            return int(status["details"]["causes"][0]["message"])
        except (TypeError, KeyError, IndexError, ValueError):
            raise ConnectionLost(f"The connection to {self.pod} ended.") from None


QUIET_SECONDS = 120.0
CHUNK = 1 << 20
MAX_OUTPUT = 1 << 28  # bytes of a program's output
MAX_ERROR = 1 << 16
INPUT_FRAME = 1 << 15  # bytes that are sent at once
BUSY_HINT = "Its node may be too busy, or its volume may hang. `kubectl describe pod` shows it. Then try again."
UID_HINT = "The pod reads as the user of the run (uid in orch-k8s.toml). Check whether that user may read the files."


class PodProgram(io.RawIOBase):
    """A program that runs in a pod; this object is also the unbuffered stream of its standard output.

    Attributes:
        output: its standard output.
    """

    def __init__(self, channels: Channels, frames: Iterator[tuple[int, bytes]], argv: tuple[str, ...]) -> None:
        self.channels = channels
        self.frames = frames
        self.argv = argv
        self.pending = b""
        self.errors = bytearray()
        self.lost: ConnectionLost | None = None
        self.output: BinaryIO = io.BufferedReader(self, CHUNK)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has arrived into a buffer; return 0 at the end of the output."""
        while not self.pending:
            try:
                channel, data = next(self.frames, (STATUS, b""))
            except ConnectionLost as error:
                self.lost = error
                return 0
            if channel == STATUS:
                return 0
            if channel == STDOUT:
                self.pending = data
            elif channel == STDERR and len(self.errors) < MAX_ERROR:
                self.errors += data
        size = min(len(buffer), len(self.pending))
        buffer[:size], self.pending = self.pending[:size], self.pending[size:]
        return size

    def send(self, data: bytes) -> None:
        """Write to its standard input."""
        for start in range(0, len(data), INPUT_FRAME):
            self.channels.send(bytes([STDIN]) + data[start : start + INPUT_FRAME])

    def failure(self) -> ExecuteError:
        """Return why its output has ended too early."""
        try:
            code = self.channels.code()
        except ConnectionLost as error:
            return self.lost or error
        reason = one_line(self.errors.decode(errors="replace").strip().rpartition("\n")[2]) or f"exit code {code}"
        return ExecuteError(f"{program_name(self.argv)} in {self.channels.pod}: {reason}.", hint=UID_HINT)


class PodExec:
    """A pod in which programs can be run."""

    def __init__(self, cluster: KubernetesClient, pod: str) -> None:
        self.cluster = cluster
        self.pod = pod

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> CommandResult:
        """Run a program to its end, and return its output.

        Raises:
            ExecuteError: if it prints too much, or does not end in time.
        """
        output = {STDOUT: bytearray(), STDERR: bytearray()}
        deadline = time.monotonic() + seconds
        with self.open(argv) as channels:
            for channel, data in channels.frames():
                if channel in output:
                    output[channel] += data
                if sum(map(len, output.values())) > MAX_OUTPUT:
                    raise ExecuteError(
                        f"The output of {self.pod} exceeds {MAX_OUTPUT >> 20} MiB, and was cut off.", hint=BUSY_HINT
                    )
                if time.monotonic() > deadline:
                    raise ExecuteError(f"{program_name(argv)} has not responded for {seconds:.0f} s.", hint=BUSY_HINT)
            code = channels.code()
        out, err = (text.decode(errors="replace") for text in output.values())
        return CommandResult(code=code, out=out, err=err)

    @contextmanager
    def open_program(self, argv: tuple[str, ...]) -> Iterator[PodProgram]:
        """Start a program whose input and output are used while it runs, and end it with the context."""
        with self.open(argv, stdin=True) as channels:
            yield PodProgram(channels, self.frames(channels), argv)

    def frames(self, channels: Channels) -> Iterator[tuple[int, bytes]]:
        """Yield the frames of channels, and raise ConnectionLost if none comes for too long."""
        last_output = time.monotonic()
        for channel, data in channels.frames():
            if data:
                last_output = time.monotonic()
            elif time.monotonic() - last_output > QUIET_SECONDS:
                raise ConnectionLost(f"{self.pod} has sent nothing for {QUIET_SECONDS:.0f} s.")
            yield channel, data

    def open(self, argv: tuple[str, ...], *, stdin: bool = False) -> Channels:
        from kubernetes import client
        from kubernetes.stream import stream

        core = client.CoreV1Api(self.cluster.client)
        response = self.cluster.attempt(
            lambda: stream(
                core.connect_get_namespaced_pod_exec,
                self.pod,
                self.cluster.namespace,
                command=list(argv),
                stdin=stdin,
                stdout=True,
                stderr=True,
                tty=False,
                binary=True,
                _preload_content=False,
            )
        )
        return Channels(response.sock, self.pod)

    def close(self) -> None:
        """Do nothing: each program has its own connection."""
