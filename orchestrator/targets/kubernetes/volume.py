"""Run programs in a pod by `exec`, and read the volume of a run through a small pod that is created for it."""

from __future__ import annotations

import io
import json
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from orch_node.protocol.record import RunRecord

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.printable import one_line, program_name
from orchestrator.planning.plan import Object
from orchestrator.targets.kubernetes import names
from orchestrator.targets.kubernetes.client import KubernetesClient, NotThere
from orchestrator.targets.kubernetes.manifests import render, toleration
from orchestrator.targets.kubernetes.objects import delete_checked
from orchestrator.targets.kubernetes.run_record import JobLocation, location_of
from orchestrator.targets.kubernetes.status import pod_state

STDIN, STDOUT, STDERR, STATUS = 0, 1, 2, 3
QUIET_SECONDS = 120.0
CHUNK = 1 << 20
MAX_ERROR = 1 << 16
INPUT_FRAME = 1 << 15  # bytes that are sent at once
EXEC_OPTIONS = {"stdin": True, "stdout": True, "stderr": True, "tty": False, "binary": True, "_preload_content": False}


class PodProgram(io.RawIOBase):
    """A program that runs in a pod; this object is also the unbuffered stream of its standard output.

    The client's own reader collects all available frames before it returns any, and copies its
    buffer for each of them, which needs memory and quadratic time for large files.

    Attributes:
        output: its standard output.
    """

    def __init__(self, socket: Any, pod: str, argv: tuple[str, ...]) -> None:
        self.socket = socket
        self.pod = pod
        self.argv = argv
        self.pending = b""
        self.errors = bytearray()
        self.status = b""
        self.lost = f"The connection to {pod} ended."  # reported unless its status arrives
        self.output: BinaryIO = io.BufferedReader(self, CHUNK)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has arrived into a buffer; return 0 at the end of the output."""
        while not self.pending:
            frame = self.receive()
            if not frame:
                return 0
            channel, data = frame[0], frame[1:]
            if channel == STDOUT:
                self.pending = data
            elif channel == STATUS:
                self.status += data
            elif channel == STDERR and len(self.errors) < MAX_ERROR:
                self.errors += data
        size = min(len(buffer), len(self.pending))
        buffer[:size], self.pending = self.pending[:size], self.pending[size:]
        return size

    def receive(self) -> bytes:
        """Return the next frame, whose first byte is its channel, or nothing if the connection has ended."""
        from websocket import ABNF, WebSocketException

        try:
            while True:
                opcode, frame = self.socket.recv_data_frame(True)
                if opcode == ABNF.OPCODE_CLOSE:
                    return b""
                if opcode in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) and frame.data:
                    return bytes(frame.data)
        except (WebSocketException, OSError) as error:
            self.lost = f"The connection to {self.pod} ended: {error}."
        return b""

    def send(self, data: bytes) -> None:
        """Write to its standard input; do nothing if the connection has ended."""
        from websocket import WebSocketException

        with suppress(WebSocketException, OSError):
            for start in range(0, len(data), INPUT_FRAME):
                self.socket.send_binary(bytes([STDIN]) + data[start : start + INPUT_FRAME])

    def code(self) -> int | None:
        """Return its exit code, or None if the connection has ended without it."""
        try:
            status = json.loads(self.status)
            return 0 if status["status"] == "Success" else int(status["details"]["causes"][0]["message"])
        except (TypeError, KeyError, IndexError, ValueError):
            return None

    def failure(self) -> ExecuteError:
        """Return why its output has ended too early."""
        code = self.code()
        if code is None:
            return ConnectionLost(self.lost)
        reason = one_line(self.errors.decode(errors="replace").strip().rpartition("\n")[2]) or f"exit code {code}"
        return ExecuteError.about("program-in-pod", program=program_name(self.argv), pod=self.pod, reason=reason)


@dataclass(frozen=True, slots=True)
class PodExec:
    """A container of a pod in which programs can be run."""

    cluster: KubernetesClient
    pod: str
    container: str

    @contextmanager
    def open_program(self, argv: tuple[str, ...], *, seconds: float = QUIET_SECONDS) -> Iterator[PodProgram]:
        """Start a program, and end it with the context or if it sends nothing for so many seconds."""
        from kubernetes import client
        from kubernetes.stream import stream

        connect = client.CoreV1Api(self.cluster.client).connect_get_namespaced_pod_exec
        with self.cluster.converted_errors():
            response = stream(
                connect, self.pod, self.cluster.namespace, container=self.container, command=list(argv), **EXEC_OPTIONS
            )
        response.sock.settimeout(seconds)
        try:
            yield PodProgram(response.sock, self.pod, argv)
        finally:
            response.sock.shutdown()  # do not wait for more output


START_SECONDS = 300.0
POLL_SECONDS = 0.5
READER = "reader"  # its container


def reader_pod(location: JobLocation, run_id: str) -> Object:
    """Return a pod through which files are fetched.

    Its name is new, because several commands may read the volume at the same time, and each deletes its pod.
    """
    values = {
        **asdict(location),
        "name": f"{location.job}-{secrets.token_hex(3)}-reader",
        "labels": {**names.labels(run_id), names.PART: READER},
        "pull_secrets": [{"name": name} for name in location.pull_secrets],
        "tolerations": [toleration(text) for text in location.tolerations],
    }
    return render("reader", values)[0]


@contextmanager
def reader(cluster: KubernetesClient, record: RunRecord) -> Iterator[PodExec]:
    """Create a pod that mounts the volume of a run, and delete it afterwards.

    Raises:
        ExecuteError: if the pod does not start.
    """
    location = location_of(record)
    if not location.image:
        raise ExecuteError.about("image-of-reader")
    pod = reader_pod(location, record.run_id)
    name = pod["metadata"]["name"]
    path = f"{cluster.path('Pod')}/{name}"
    with ending_at_sigterm():
        try:
            cluster.apply(pod)
            await_running(cluster, path)
            yield PodExec(cluster, name, READER)
        finally:
            with suppress(NotThere):
                delete_checked(cluster, cluster.get(path), record.run_id)


@contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an ordinary exit, so that the pod is deleted."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def await_running(cluster: KubernetesClient, path: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        pod = cluster.get(path)
        state = pod_state(pod, cluster.events(f"involvedObject.uid={pod['metadata']['uid']}"))
        if state.state == "running":
            return
        has_ended = state.state in ("failed", "done") or "cannot be pulled" in state.reason
        if has_ended or time.monotonic() > deadline:
            raise ExecuteError.about("start-of-reader", reason=state.reason, pod=path.rpartition("/")[2])
        time.sleep(POLL_SECONDS)
