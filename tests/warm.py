"""Programs that start where Python has imported torch and transformers already.

A rank of a recipe spends most of a small test's time on these imports. Here one process has them,
and forks for each program; what it forks has its own arguments, environment, folder, files and
random numbers, and ends as a Python of its own would. That a recipe starts without this is tested
too: `jobs.started(..., warm=False)`, and every run of it by orch.

The server: `python tests/warm.py SOCKET`. A client sends one request with the files for the
program's output; it is told the program's number, and its exit code when it has ended.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import random
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# All that the recipes import of packages, and what transformers imports late.
MODULES = (
    "torch", "torch.distributed", "torch.nn.parallel", "torch.utils.tensorboard", "transformers",
    "transformers.models.bert.modeling_bert", "transformers.trainer", "accelerate",
    "pyarrow.parquet",
)  # fmt: skip
NAMES = ("Trainer", "TrainingArguments", "AutoTokenizer", "HfArgumentParser")
# Read by libraries as they are loaded, so all programs of a server have these in common.
COMMON = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


# --- the server -----------------------------------------------------------------------------


def serve(path: str) -> None:
    for name in MODULES:
        importlib.import_module(name)
    for name in NAMES:
        getattr(sys.modules["transformers"], name)
    threads = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
    # jemalloc, pyarrow's allocator, starts its thread again in a child.
    assert threads <= {Path("/proc/self/comm").read_text().strip(), "jemalloc_bg_thd"}, threads
    own = list(sys.path)
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    clients: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(64)
        while os.getppid() != 1:
            ready, _, _ = select.select([server, wake], [], [], 5.0)
            if wake in ready:
                wake.recv(4096)
                tell_of_ends(clients)
            if server in ready:
                client, _ = server.accept()
                pid = fork(client, [server, wake, waker, *clients.values()], own)
                clients[pid] = client
                client.sendall(f"{pid}\n".encode())


def tell_of_ends(clients: dict[int, socket.socket]) -> None:
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with clients.pop(pid) as client:
            try:
                client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            except OSError:
                pass  # nobody waits for it


def fork(client: socket.socket, others: list[socket.socket], path: list[str]) -> int:
    request, files, _, _ = socket.recv_fds(client, 1 << 20, 2)
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for one in (client, *others):
        one.close()
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
        os.close(file)
    os._exit(program(json.loads(request), path))


def program(request: dict[str, Any], path: list[str]) -> int:
    """Be this program; -> its exit code."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if request["file_limit"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"],) * 2)
    seed_anew()
    sys.argv = request["argv"]
    sys.path[:] = [str(Path(sys.argv[0]).parent), *path[1:]]
    code = outcome_of(sys.argv[0])
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def seed_anew() -> None:
    """What Python and numpy draw by chance at their start."""
    import numpy

    random.seed()
    numpy.random.seed()


def outcome_of(script: str) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


# --- its clients ------------------------------------------------------------------------------


class Warm:
    """The server of this process, started by the first who wants it."""

    process: subprocess.Popen[bytes] | None = None
    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def connect(cls) -> socket.socket:
        if cls.process is None:
            cls.folder = tempfile.TemporaryDirectory(prefix="warm-")
            command = [sys.executable, __file__, f"{cls.folder.name}/socket"]
            with open(f"{cls.folder.name}/said", "wb") as log:
                cls.process = subprocess.Popen(command, env={**os.environ, **COMMON}, stderr=log)
            atexit.register(cls.end)
        deadline = time.monotonic() + 300
        while True:
            client = socket.socket(socket.AF_UNIX)
            try:
                client.connect(f"{cls.folder.name}/socket")
                return client
            except (FileNotFoundError, ConnectionRefusedError):
                client.close()
                said = Path(cls.folder.name, "said").read_text()
                assert cls.process.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.05)

    @classmethod
    def end(cls) -> None:
        if cls.process is not None:
            cls.process.kill()
            cls.process.wait()
            cls.folder.cleanup()


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
        self.socket = Warm.connect()
        request = {"argv": argv, "env": dict(env), "cwd": str(cwd or Path.cwd()),
                   "file_limit": file_limit}  # fmt: skip
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


if __name__ == "__main__":
    serve(sys.argv[1])
