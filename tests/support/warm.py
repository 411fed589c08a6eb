"""Fork programs from a Python that has imported all modules that they need ("warm" programs).

A rank of a small test spends most of its time importing torch, and a command of orch spends most of its time
importing orch. Here one process (tests/support/warm_server.py) imports them, and forks for each program. A forked
program has its own arguments, environment, working folder, files and random numbers, and ends like a new Python.

Some tests use a new Python instead, to test that programs start:

- recipes in every run by orch
- the bindings with `launch(..., warm=False)`, under each launcher
- orch with `orch(..., warm=False)`, in all of tests/slurm, with `Site.start` of tests/cluster, and wherever a test
  sends orch a signal or reads its output while it runs

Tests use the clients below; launchers start tests/support/warm_client.py instead of Python.
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
import threading
import time
from collections.abc import Mapping
from pathlib import Path

SERVER = Path(__file__).with_name("warm_server.py")
CLIENT = Path(__file__).with_name("warm_client.py")
# Libraries read these variables when they are loaded, so all programs of a server must have the same values.
COMMON_VARIABLES = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
# Python and typer read these variables when they start.
VARIABLES_READ_AT_START = """
    LANG LC_ALL PYTHONPATH PYTHONWARNINGS PYTHONUTF8 PYTHONIOENCODING TZ FORCE_COLOR PY_COLORS GITHUB_ACTIONS
    TERMINAL_WIDTH TYPER_USE_RICH
"""


class WarmServer:
    """A server for this process, which starts when it is first needed.

    Args:
        kind: key of warm_server.MODULES.
        options: options of Python.
        common: environment variables that all programs must have.
    """

    def __init__(self, kind: str, *options: str, common: Mapping[str, str] = COMMON_VARIABLES) -> None:
        self.kind, self.options, self.common = kind, options, common
        self.process: subprocess.Popen[bytes] | None = None
        self.start_lock = threading.Lock()

    def differing_variables(self, env: Mapping[str, str]) -> set[str]:
        """Return the names of variables whose values differ from those that the server was started with."""
        self.ensure_started()
        return {name for name, value in self.start_variables.items() if env.get(name) != value}

    def ensure_started(self) -> None:
        with self.start_lock:
            if self.process is None:
                self.start()

    def connect(self) -> socket.socket:
        """Connect to the server, and wait until it has imported its modules."""
        self.ensure_started()
        assert self.process
        deadline = time.monotonic() + 300
        while True:
            client = socket.socket(socket.AF_UNIX)
            try:
                client.connect(f"{self.folder.name}/socket")
                return client
            except (FileNotFoundError, ConnectionRefusedError):
                client.close()
                log = Path(self.folder.name, "log").read_text()
                assert self.process.poll() is None, log
                assert time.monotonic() < deadline, log
                time.sleep(0.05)

    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="warm-")
        command = [sys.executable, *self.options, str(SERVER), self.kind, f"{self.folder.name}/socket"]
        env = {**os.environ, **self.common}
        self.start_variables = {name: env.get(name) for name in (*self.common, *VARIABLES_READ_AT_START.split())}
        with open(f"{self.folder.name}/log", "wb") as log:
            self.process = subprocess.Popen(command, env=env, stderr=log)
        atexit.register(self.end)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.folder.cleanup()

    def client_command(self) -> list[str]:
        """Return the command that a launcher runs instead of Python, after the server has started."""
        self.connect().close()
        return [sys.executable, "-IS", str(CLIENT), f"{self.folder.name}/socket"]


RECIPES_SERVER = WarmServer("recipes")
BINDINGS_SERVER = WarmServer("bindings", "-u")  # tests check what a rank has printed before it is killed
ORCH_SERVER = WarmServer("orch", common={})


class Program:
    """A program that a server has forked, and kills when this object is garbage-collected.

    It has those methods of subprocess.Popen that tests use.

    Args:
        server: the server.
        argv: path or module of the script, and its arguments.
        env: environment of the program.
        cwd: working folder of the program.
        file_limit: largest size of a file in bytes.
    """

    def __init__(
        self, server: WarmServer, argv: list[str], *, env: Mapping[str, str], cwd: Path, file_limit: int | None = None
    ) -> None:
        differing = server.differing_variables(env)
        assert not differing, f"the server was started with different values of {differing}"
        self.returncode: int | None = None
        self.socket = server.connect()
        request = {"argv": argv, "env": dict(env), "cwd": str(cwd), "files": [0, 1, 2], "file_limit": file_limit}
        pipes = [os.pipe() for _ in range(2)]
        files = [os.open(os.devnull, os.O_RDONLY), *(write_end for _, write_end in pipes)]
        socket.send_fds(self.socket, [json.dumps(request).encode()], files)
        for file in files:
            os.close(file)
        self.outputs = ["", ""]
        self.readers = [
            threading.Thread(target=read_output, args=(number, read_end, self.outputs), daemon=True)
            for number, (read_end, _) in enumerate(pipes)
        ]
        for reader in self.readers:
            reader.start()
        self.responses = self.socket.makefile()
        self.pid = int(self.responses.readline())

    def poll(self) -> int | None:
        return self.wait(0)

    def wait(self, timeout: float) -> int | None:
        """Wait for so many seconds, and return the exit code, or None if the program still runs."""
        if self.returncode is None and select.select([self.socket], [], [], timeout)[0]:
            self.returncode = int(self.responses.readline())
            self.responses.close()
            self.socket.close()
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[str, str]:
        deadline = time.monotonic() + timeout
        for reader in self.readers:
            reader.join(max(0, deadline - time.monotonic()))
        if any(reader.is_alive() for reader in self.readers) or self.wait(max(0, deadline - time.monotonic())) is None:
            self.kill()
            raise subprocess.TimeoutExpired("a warm program", timeout)
        return self.outputs[0], self.outputs[1]


def run_orch(*arguments: str, env: Mapping[str, str], cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run `python -m orchestrator.cli.main ARGUMENTS...`, and return what subprocess.run() returns."""
    argv = ["orchestrator.cli.main", *arguments]
    program = Program(ORCH_SERVER, argv, env=env, cwd=cwd)
    outputs = program.communicate(timeout)
    return subprocess.CompletedProcess(argv, program.returncode or 0, *outputs)


def read_output(number: int, read_end: int, outputs: list[str]) -> None:
    """Read a pipe until its end into `outputs[number]`."""
    with open(read_end) as file:
        outputs[number] = file.read()
