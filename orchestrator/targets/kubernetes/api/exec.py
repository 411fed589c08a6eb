"""Run programs in a pod by `exec`, and read what they print."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.command import CommandResult, program_name
from orchestrator.model.printable import one_line
from orchestrator.targets.kubernetes.api.client import Kube

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


QUIET_SECONDS = 120.0
CHUNK = 1 << 20
LARGEST_ANSWER = 1 << 28  # bytes of a program's output: the list of a million files
LARGEST_ERROR = 1 << 16
BUSY = "Its node may be too busy, or its volume hang: `kubectl describe pod` tells. Then try again."
OF_UID = "The pod reads as the user of the run (uid in orch-k8s.toml): may that user read it?"
# -I -S: whatever the image has in its site-packages is not imported.
COPY = (
    "import shutil,sys\n"
    "with open(sys.argv[1],'rb') as file:\n"
    "    file.seek(int(sys.argv[2]))\n"
    "    shutil.copyfileobj(file,sys.stdout.buffer,1<<20)\n"
)


class PodExec:
    """One container of one pod."""

    def __init__(self, cluster: Kube, pod: str) -> None:
        self.cluster = cluster
        self.pod = pod

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> CommandResult:
        """Run a program there to its end. Raises ExecuteError."""
        said = {STDOUT: bytearray(), STDERR: bytearray()}
        deadline = time.monotonic() + seconds
        with self.opened(argv) as channels:
            for channel, data in channels.frames():
                if channel in said:
                    said[channel] += data
                if sum(map(len, said.values())) > LARGEST_ANSWER:
                    raise ExecuteError(f"The answer of {self.pod} has no end, and was cut off.", hint=BUSY)
                if time.monotonic() > deadline:
                    raise ExecuteError(f"{program_name(argv)} has not answered for {seconds:.0f} s.", hint=BUSY)
            code = channels.code()
        out, err = (text.decode(errors="replace") for text in said.values())
        return CommandResult(code=code, out=out, err=err)

    def chunks(self, path: str, offset: int) -> Iterator[bytes]:
        """The file's bytes from `offset` on, about a megabyte at a time. Raises ExecuteError, after
        what has come until then was given."""
        pending, errors = bytearray(), bytearray()
        with self.opened(("python3", "-I", "-S", "-c", COPY, path, str(offset))) as channels:
            try:
                for channel, data in self.heard(channels):
                    if channel == STDOUT:
                        pending += data
                    elif channel == STDERR and len(errors) < LARGEST_ERROR:
                        errors += data
                    if len(pending) >= CHUNK:
                        yield bytes(pending)
                        pending.clear()
            except ConnectionLost:
                yield bytes(pending)  # the next time goes on behind it
                raise
            yield bytes(pending)
            if channels.code() != 0:
                said = errors.decode(errors="replace").strip()
                why = one_line(said.rpartition("\n")[2]) or "it was cut off"
                raise ExecuteError(f"{path} cannot be read: {why}.", hint=OF_UID)

    def heard(self, channels: Channels) -> Iterator[tuple[int, bytes]]:
        """Its frames. Raises ConnectionLost also where nothing comes for too long."""
        heard = time.monotonic()
        for channel, data in channels.frames():
            if data:
                heard = time.monotonic()
            elif time.monotonic() - heard > QUIET_SECONDS:
                raise ConnectionLost(f"{self.pod} has sent nothing for {QUIET_SECONDS:.0f} s.")
            yield channel, data

    def opened(self, argv: tuple[str, ...]) -> Channels:
        from kubernetes import client
        from kubernetes.stream import stream

        core = client.CoreV1Api(self.cluster.client)
        found = self.cluster.attempt(
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
        return Channels(found.sock, self.pod)

    def close(self) -> None:
        """Nothing is open."""
