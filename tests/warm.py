"""Programs that start where Python has imported torch already.

A rank spends most of a small test's time on imports. Here one process (tests/warm_server.py) has
them, and forks for each program; what it forks has its own arguments, environment, folder, files
and random numbers, and ends as a Python of its own would. That programs start without this is
tested too: recipes with `jobs.started(..., warm=False)` and in every run by orch, those of the
bindings with `launch(..., warm=False)`, under each launcher.

Its clients: Program here, for tests, and tests/warm_client.py, for launchers.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

SERVER = Path(__file__).with_name("warm_server.py")
CLIENT = Path(__file__).with_name("warm_client.py")
# Read by libraries as they are loaded, so all programs of a server have these in common.
COMMON = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Warm:
    """A server of this process, started by the first who wants it."""

    def __init__(self, kind: str, *options: str) -> None:
        self.kind, self.options = kind, options
        self.process: subprocess.Popen[bytes] | None = None

    def connect(self) -> socket.socket:
        if self.process is None:
            self.start()
        assert self.process
        deadline = time.monotonic() + 300
        while True:
            client = socket.socket(socket.AF_UNIX)
            try:
                client.connect(f"{self.folder.name}/socket")
                return client
            except (FileNotFoundError, ConnectionRefusedError):
                client.close()
                said = Path(self.folder.name, "said").read_text()
                assert self.process.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.05)

    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="warm-")
        command = [
            sys.executable,
            *self.options,
            str(SERVER),
            self.kind,
            f"{self.folder.name}/socket",
        ]
        with open(f"{self.folder.name}/said", "wb") as log:
            self.process = subprocess.Popen(command, env={**os.environ, **COMMON}, stderr=log)
        atexit.register(self.end)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.folder.cleanup()

    def command(self) -> list[str]:
        """What a launcher starts in the place of Python; the server is there."""
        self.connect().close()
        return [sys.executable, "-IS", str(CLIENT), f"{self.folder.name}/socket"]


RECIPES = Warm("recipes")
BINDINGS = Warm("bindings", "-u")  # what a rank has printed when it is killed counts


class Program:
    """As much of subprocess.Popen as the tests of recipes use."""

    def __init__(
        self,
        argv: list[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        file_limit: int | None = None,
    ) -> None:
        differing = {name: env.get(name) for name in COMMON if env.get(name) != COMMON[name]}
        assert not differing, f"the server was started with others: {differing}"
        self.returncode: int | None = None
        self.said: list[str] = []
        self.files = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
        self.socket = RECIPES.connect()
        request = {"argv": argv, "env": dict(env), "cwd": str(cwd or Path.cwd()),
                   "files": [1, 2], "file_limit": file_limit, "as_any": False}  # fmt: skip
        numbers = [file.fileno() for file in self.files]
        socket.send_fds(self.socket, [json.dumps(request).encode()], numbers)
        self.answers = self.socket.makefile()
        self.pid = int(self.answers.readline())

    def poll(self) -> int | None:
        return self.wait(0)

    def wait(self, timeout: float) -> int | None:
        """-> the exit code, or None if it still runs after so many seconds."""
        if self.returncode is None and select.select([self.socket], [], [], timeout)[0]:
            self.returncode = int(self.answers.readline())
            self.answers.close()
            self.socket.close()
        return self.returncode

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        if self.wait(timeout) is None:
            raise subprocess.TimeoutExpired("a warm program", timeout)
        for file in self.files:
            with file:
                file.seek(0)
                self.said.append(file.read())
        self.files = []
        return self.said[0], self.said[1]

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
