"""Programs in a pod, by `exec`: what fetching needs of the place where the files are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.command import Answer, program
from orchestrator.targets.kubernetes.api.client import Kube

TICK_SECONDS = 1.0
QUIET_SECONDS = 120.0
LARGEST_ANSWER = 1 << 28  # bytes of a program's output: the list of a million files
# -I -S: whatever the image has in its site-packages is not imported.
COPY = (
    "import shutil,sys\n"
    "with open(sys.argv[1],'rb') as file:\n"
    "    file.seek(int(sys.argv[2]))\n"
    "    shutil.copyfileobj(file,sys.stdout.buffer)\n"
)


class PodExec:
    """One container of one pod."""

    def __init__(self, cluster: Kube, pod: str) -> None:
        self.cluster = cluster
        self.pod = pod

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> Answer:
        """Run a program there to its end. Raises ExecuteError."""
        stream = self.open(argv)
        out, err = bytearray(), bytearray()
        deadline = time.monotonic() + seconds
        try:
            while stream.is_open() or stream.peek_stdout() or stream.peek_stderr():
                stream.update(timeout=TICK_SECONDS)
                out += stream.read_stdout() if stream.peek_stdout() else b""
                err += stream.read_stderr() if stream.peek_stderr() else b""
                if len(out) + len(err) > LARGEST_ANSWER:
                    raise ExecuteError(f"The answer of {self.pod} has no end, and was cut off.")
                if time.monotonic() > deadline:
                    raise ExecuteError(f"{program(argv)} has not answered for {seconds:.0f} s.")
            code = self.code_of(stream)
        finally:
            stream.close()
        return Answer(code=code, out=out.decode(errors="replace"), err=err.decode(errors="replace"))

    def chunks(self, path: str, offset: int) -> Iterator[bytes]:
        """The file's bytes from `offset` on. Raises ExecuteError."""
        stream = self.open(("python3", "-I", "-S", "-c", COPY, path, str(offset)))
        try:
            heard = time.monotonic()
            while stream.is_open() or stream.peek_stdout():
                stream.update(timeout=TICK_SECONDS)
                if stream.peek_stdout():
                    heard = time.monotonic()
                    yield stream.read_stdout()
                if time.monotonic() - heard > QUIET_SECONDS:
                    raise ConnectionLost(f"{self.pod} has sent nothing for {QUIET_SECONDS:.0f} s.")
            if self.code_of(stream) != 0:
                said = bytes(stream.read_stderr() or b"").decode(errors="replace").strip()
                raise ExecuteError(f"{path} cannot be read: {said.splitlines()[-1:]}.")
        finally:
            stream.close()

    def open(self, argv: tuple[str, ...]) -> Any:
        from kubernetes import client
        from kubernetes.stream import stream

        core = client.CoreV1Api(self.cluster.client)
        return self.cluster.attempt(
            lambda: stream(
                core.connect_get_namespaced_pod_exec,
                self.pod, self.cluster.namespace, command=list(argv),
                stdin=False, stdout=True, stderr=True, tty=False,
                binary=True, _preload_content=False,
            )
        )  # fmt: skip

    def code_of(self, stream: Any) -> int:
        """Raises ConnectionLost where the stream ended without saying how."""
        try:
            return int(stream.returncode)
        except (TypeError, KeyError, IndexError, ValueError):
            raise ConnectionLost(f"The connection to {self.pod} ended.") from None

    def close(self) -> None:
        """Nothing is open."""
