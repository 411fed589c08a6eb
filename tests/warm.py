"""Programs that start where Python has imported torch already.

A rank spends most of a small test's time on imports. Here one process has them, and forks for each
program; what it forks has its own arguments, environment, folder, files and random numbers, and
ends as a Python of its own would. That programs start without this is tested too: recipes with
`jobs.started(..., warm=False)` and in every run by orch, those of the bindings with
`launch(..., warm=False)`, under each launcher.

The server: `python tests/warm.py KIND SOCKET`. A client sends one request with files and the
numbers that they have in the program; it is told the program's number, and its exit code when it
has ended. A client that goes takes its program with it. Clients: Program here, for tests, and
tests/warm_client.py, for launchers.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
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
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# All that recipes import of packages, and what transformers imports late; and what the programs of
# the bindings' tests import, but for one.
MODULES = {
    "recipes": (
        "torch", "torch.distributed", "torch.nn.parallel", "torch.utils.tensorboard",
        "transformers", "transformers.models.bert.modeling_bert", "transformers.trainer",
        "accelerate", "pyarrow.parquet",
    ),
    "bindings": (
        "torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo",
        "torch.distributed.checkpoint", "torch.distributed.fsdp", "oneccl_bindings_for_pytorch",
    ),
}  # fmt: skip
NAMES = ("Trainer", "TrainingArguments", "AutoTokenizer", "HfArgumentParser")
CLIENT = Path(__file__).with_name("warm_client.py")
# Read by libraries as they are loaded, so all programs of a server have these in common.
COMMON = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


# --- the server -----------------------------------------------------------------------------


def serve(kind: str, path: str) -> None:
    for name in MODULES[kind]:
        importlib.import_module(name)
    if "transformers" in sys.modules:
        for name in NAMES:
            getattr(sys.modules["transformers"], name)
    threads = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
    # jemalloc, pyarrow's allocator, starts its thread again in a child.
    assert threads <= {Path("/proc/self/comm").read_text().strip(), "jemalloc_bg_thd"}, threads
    gc.freeze()  # what all have in common is neither looked at nor copied
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
            ready, _, _ = select.select([server, wake, *clients.values()], [], [], 5.0)
            if wake in ready:
                wake.recv(4096)
                tell_of_ends(clients)
            end_those_of(clients, ready)
            if server in ready:
                client, _ = server.accept()
                pid = fork(client, [server, wake, waker, *clients.values()], own)
                if pid:
                    clients[pid] = client
                    client.sendall(f"{pid}\n".encode())


def tell_of_ends(clients: dict[int, socket.socket]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in clients:
            with clients.pop(pid) as client:
                try:
                    client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                except OSError:
                    pass  # nobody waits for it


def end_those_of(clients: dict[int, socket.socket], ready: list[socket.socket]) -> None:
    """The programs of clients that are gone."""
    for pid, client in list(clients.items()):
        if client in ready:
            os.kill(pid, signal.SIGKILL)
            clients.pop(pid).close()


def fork(client: socket.socket, others: list[socket.socket], path: list[str]) -> int:
    """-> the number of the program; 0 if the client wanted none."""
    words, files, _, _ = socket.recv_fds(client, 1 << 20, 200)
    if not words:
        client.close()
        return 0
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for one in (client, *others):
        one.close()
    request = json.loads(words)
    place(files, request["files"])
    prepare(request, path)
    if request["as_any"]:
        be_main(sys.argv[0])
        sys.exit()  # and all that follows is as in any Python
    os._exit(program(sys.argv[0]))


def place(files: list[int], numbers: list[int]) -> None:
    """Give the files these numbers."""
    above = max(numbers) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def prepare(request: dict[str, Any], path: list[str]) -> None:
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if request["file_limit"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"],) * 2)
    seed_anew()
    sys.argv = request["argv"]
    sys.path[:] = [str(Path(sys.argv[0]).parent), *path[1:]]


def be_main(script: str) -> None:
    os.setsid()
    main = types.ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main  # where it stays until the interpreter ends
    exec(compile(Path(script).read_text(), script, "exec"), vars(main))


def program(script: str) -> int:
    """-> its exit code."""
    code = outcome_of(script)
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
        command = [sys.executable, *self.options, __file__, self.kind, f"{self.folder.name}/socket"]
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


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
