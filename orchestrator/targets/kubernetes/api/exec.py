"""Run programs in a pod by `exec`, and read what they print."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.command import CommandResult, program_name
from orchestrator.model.printable import one_line
from orchestrator.targets.kubernetes.api.client import KubernetesClient

STDOUT, STDERR, STATUS = 1, 2, 3
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
MAX_OUTPUT = 1 << 28  # bytes of a program's output: the list of a million files
MAX_ERROR = 1 << 16
BUSY_HINT = "Its node may be too busy, or its volume may hang. `kubectl describe pod` shows it. Then try again."
UID_HINT = "The pod reads as the user of the run (uid in orch-k8s.toml). Check whether that user may read it."
# Run with -I -S, so that nothing is imported from the image's site-packages.
COPY = (
    "import shutil,sys\n"
    "with open(sys.argv[1],'rb') as file:\n"
    "    file.seek(int(sys.argv[2]))\n"
    "    shutil.copyfileobj(file,sys.stdout.buffer,1<<20)\n"
)


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

    def chunks(self, path: str, offset: int) -> Iterator[bytes]:
        """Yield a file from `offset` bytes on, about a megabyte at a time.

        Raises:
            ExecuteError: after all received bytes are yielded, if the file cannot be read.
        """
        pending, errors = bytearray(), bytearray()
        with self.open(("python3", "-I", "-S", "-c", COPY, path, str(offset))) as channels:
            try:
                for channel, data in self.frames(channels):
                    if channel == STDOUT:
                        pending += data
                    elif channel == STDERR and len(errors) < MAX_ERROR:
                        errors += data
                    if len(pending) >= CHUNK:
                        yield bytes(pending)
                        pending.clear()
            except ConnectionLost:
                yield bytes(pending)  # the next attempt continues after it
                raise
            yield bytes(pending)
            if channels.code() != 0:
                message = errors.decode(errors="replace").strip()
                reason = one_line(message.rpartition("\n")[2]) or "it was cut off"
                raise ExecuteError(f"{path} cannot be read: {reason}.", hint=UID_HINT)

    def frames(self, channels: Channels) -> Iterator[tuple[int, bytes]]:
        """Yield the frames of channels, and raise ConnectionLost if none comes for too long."""
        last_output = time.monotonic()
        for channel, data in channels.frames():
            if data:
                last_output = time.monotonic()
            elif time.monotonic() - last_output > QUIET_SECONDS:
                raise ConnectionLost(f"{self.pod} has sent nothing for {QUIET_SECONDS:.0f} s.")
            yield channel, data

    def open(self, argv: tuple[str, ...]) -> Channels:
        from kubernetes import client
        from kubernetes.stream import stream

        core = client.CoreV1Api(self.cluster.client)
        response = self.cluster.attempt(
            lambda: stream(
                core.connect_get_namespaced_pod_exec,
                self.pod,
                self.cluster.namespace,
                command=list(argv),
                stdin=False,
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
