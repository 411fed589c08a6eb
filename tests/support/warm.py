"""Programs that start where Python has imported all that they need already.

A rank of a small test spends most of its time on the import of torch, a command of orch on that of
orch. Here one process (tests/support/warm_server.py) has them, and forks for each program; what it forks
has its own arguments, environment, folder, files and random numbers, and ends as a Python of its
own would. That programs start without this is tested too: recipes with
`jobs.started(..., warm=False)` and in every run by orch, those of the bindings with
`launch(..., warm=False)`, under each launcher; orch with `orch(..., warm=False)`, in all of
tests/slurm, with the `start` of tests/cluster, and wherever a test sends it a signal or reads from
it as it runs.

Its clients: those here, for tests, and tests/support/warm_client.py, for launchers.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

SERVER = Path(__file__).with_name("warm_server.py")
CLIENT = Path(__file__).with_name("warm_client.py")
# Read by libraries as they are loaded, so all programs of a server have these in common.
COMMON_VARIABLES = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
# What Python and typer read of the environment as they start.
VARIABLES_READ_AT_START = (
    "LANG",
    "LC_ALL",
    "PYTHONPATH",
    "PYTHONWARNINGS",
    "PYTHONUTF8",
    "PYTHONIOENCODING",
    "TZ",
    "FORCE_COLOR",
    "PY_COLORS",
    "GITHUB_ACTIONS",
    "TERMINAL_WIDTH",
    "TYPER_USE_RICH",
)


class WarmServer:
    """A server of this process, started by the first who wants it."""

    def __init__(self, kind: str, *options: str, common: Mapping[str, str] = COMMON_VARIABLES) -> None:
        self.kind, self.options, self.common = kind, options, common
        self.process: subprocess.Popen[bytes] | None = None
        self.starting = threading.Lock()

    def differing_variables(self, env: Mapping[str, str]) -> set[str]:
        """Which of the variables that all programs have in common would not be in common."""
        self.need()
        return {name for name, value in self.read.items() if env.get(name) != value}

    def need(self) -> None:
        with self.starting:
            if self.process is None:
                self.start()

    def connect(self) -> socket.socket:
        self.need()
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
        command = [sys.executable, *self.options, str(SERVER), self.kind, f"{self.folder.name}/socket"]
        environment = {**os.environ, **self.common}
        self.read = {name: environment.get(name) for name in (*self.common, *VARIABLES_READ_AT_START)}
        with open(f"{self.folder.name}/said", "wb") as log:
            self.process = subprocess.Popen(command, env=environment, stderr=log)
        atexit.register(self.end)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.folder.cleanup()

    def client_command(self) -> list[str]:
        """What a launcher starts in the place of Python; the server is there."""
        self.connect().close()
        return [sys.executable, "-IS", str(CLIENT), f"{self.folder.name}/socket"]


RECIPES_SERVER = WarmServer("recipes")
BINDINGS_SERVER = WarmServer("bindings", "-u")  # what a rank has printed when it is killed counts
ORCH_SERVER = WarmServer("orch", common={})


class ForkedProgram:
    """A program of a server, which ends it when this is forgotten. `files`: by their numbers."""

    def __init__(
        self,
        server: WarmServer,
        argv: list[str],
        files: Mapping[int, int],
        *,
        env: Mapping[str, str],
        cwd: Path,
        file_limit: int | None = None,
    ) -> None:
        differing = server.differing_variables(env)
        assert not differing, f"the server was started with other values of {differing}"
        self.returncode: int | None = None
        self.socket = server.connect()
        request = {
            "argv": argv,
            "env": dict(env),
            "cwd": str(cwd),
            "files": [*files],
            "file_limit": file_limit,
            "as_any": False,
        }
        socket.send_fds(self.socket, [json.dumps(request).encode()], [*files.values()])
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

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Program(ForkedProgram):
    """As much of subprocess.Popen as the tests of recipes use."""

    def __init__(
        self, argv: list[str], *, env: Mapping[str, str], cwd: Path | None = None, file_limit: int | None = None
    ) -> None:
        self.said: list[str] = []
        self.files = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
        files = {number: file.fileno() for number, file in enumerate(self.files, 1)}
        where = cwd or Path.cwd()
        super().__init__(RECIPES_SERVER, argv, files, env=env, cwd=where, file_limit=file_limit)

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        if self.wait(timeout) is None:
            raise subprocess.TimeoutExpired("a warm program", timeout)
        for file in self.files:
            with file:
                file.seek(0)
                self.said.append(file.read())
        self.files = []
        return self.said[0], self.said[1]


def run_orch(*words: str, env: Mapping[str, str], cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """What subprocess.run() gives of `python -m orchestrator.cli.main WORDS...`."""
    argv = ["orchestrator.cli.main", *words]
    outputs = [os.pipe(), os.pipe()]
    with contextlib.ExitStack() as ours, open(os.devnull) as nothing:
        files = {0: nothing.fileno(), 1: outputs[0][1], 2: outputs[1][1]}
        for _, end in outputs:
            ours.callback(os.close, end)
        forked = ForkedProgram(ORCH_SERVER, argv, files, env=env, cwd=cwd)
    said = ["", ""]
    readers = [
        threading.Thread(target=read_output, args=(number, end, said), daemon=True)
        for number, (end, _) in enumerate(outputs)
    ]
    deadline = time.monotonic() + timeout
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(max(0, deadline - time.monotonic()))
    if any(one.is_alive() for one in readers) or forked.wait(deadline - time.monotonic()) is None:
        forked.kill()
        raise subprocess.TimeoutExpired(argv, timeout)
    assert forked.returncode is not None
    return subprocess.CompletedProcess(argv, forked.returncode, *said)


def read_output(number: int, end: int, said: list[str]) -> None:
    with open(end) as file:
        said[number] = file.read()
