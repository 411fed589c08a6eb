"""The process from which tests/support/warm.py's programs are forked: `python warm_server.py KIND SOCKET`.

A client sends one request with files and the numbers that they have in the program; it is told the
program's number, and its exit code when it has ended. A client that goes takes its program with it.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import random
import resource
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
import types
from pathlib import Path
from typing import Any

# All that recipes import of packages, and what transformers imports late; what the programs of the
# bindings' tests import, but for one; and orch, with what it imports late, but for Ansible.
MODULES = {
    "recipes": (
        "torch",
        "torch.distributed",
        "torch.nn.parallel",
        "torch.utils.tensorboard",
        "transformers",
        "transformers.models.bert.modeling_bert",
        "transformers.trainer",
        "accelerate",
        "pyarrow.parquet",
    ),
    "bindings": (
        "torch",
        "torch.distributed",
        "torch.nn.parallel",
        "torch._dynamo",
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "oneccl_bindings_for_pytorch",
    ),
    "orch": ("kubernetes", "fabric", "paramiko", "orchestrator"),
}
# Of orch the program itself begins anew, and what reads the environment as it is imported.
PROGRAM, ANEW = "orchestrator.cli.main", ("kubernetes.config",)
NAMES = ("Trainer", "TrainingArguments", "AutoTokenizer", "HfArgumentParser")


def serve(kind: str, path: str) -> None:
    import_all(kind)
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


def import_all(kind: str) -> None:
    for name in MODULES[kind]:
        module = importlib.import_module(name)
        if name == "orchestrator":
            for inner in pkgutil.walk_packages(module.__path__, "orchestrator."):
                if inner.name != PROGRAM:
                    importlib.import_module(inner.name)
    if "transformers" in sys.modules:
        for name in NAMES:
            getattr(sys.modules["transformers"], name)


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
    tempfile.tempdir = None
    sys.argv = request["argv"]
    module = sys.argv[0] == PROGRAM
    sys.path[:] = [request["cwd"] if module else str(Path(sys.argv[0]).parent), *path[1:]]
    for name in [name for name in sys.modules if name.startswith(ANEW)]:
        del sys.modules[name]


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
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def outcome_of(script: str) -> int:
    try:
        if script == PROGRAM:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
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


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
