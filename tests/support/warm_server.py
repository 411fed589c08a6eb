"""Import modules, and fork a process for each program of tests/support/warm.py: `python warm_server.py KIND SOCKET`.

A client sends one request with open files and their numbers in the program. The server responds with the process id,
and with the exit code when the program ends. It kills the program if the client disconnects.
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

# Modules that programs import, also those that transformers and orch import when they are first used. One program of
# the bindings and Ansible import more.
MODULES = {
    "recipes": """
        torch torch.distributed torch.nn.parallel torch.utils.tensorboard transformers
        transformers.models.bert.modeling_bert transformers.trainer accelerate pyarrow.parquet
""",
    "bindings": """
        torch torch.distributed torch.nn.parallel torch._dynamo torch.distributed.checkpoint torch.distributed.fsdp
        oneccl_bindings_for_pytorch
""",
    "orch": "kubernetes fabric paramiko orchestrator",
}
# Modules that each orch imports itself: the program, and those that read the environment when they are imported.
PROGRAM, IMPORTED_AFTER_FORK = "orchestrator.cli.main", ("kubernetes.config",)
TRANSFORMERS_CLASSES = ("Trainer", "TrainingArguments", "AutoTokenizer", "HfArgumentParser")


def serve(kind: str, path: str) -> None:
    """Serve requests on a socket at this path until the parent process ends."""
    import_all(kind)
    threads = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
    # Threads do not survive a fork; only that of jemalloc, pyarrow's allocator, is started again in the child.
    assert threads <= {Path("/proc/self/comm").read_text().strip(), "jemalloc_bg_thd"}, threads
    gc.freeze()  # so that no child searches, and thereby copies, the memory of imported modules
    search_path = list(sys.path)
    wakeup_reader, wakeup_writer = socket.socketpair()
    wakeup_writer.setblocking(False)
    signal.set_wakeup_fd(wakeup_writer.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    clients: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(64)
        while os.getppid() != 1:
            ready, _, _ = select.select([server, wakeup_reader, *clients.values()], [], [], 5.0)
            if wakeup_reader in ready:
                wakeup_reader.recv(4096)
                send_exit_codes(clients)
            kill_disconnected(clients, ready)
            if server in ready:
                client, _ = server.accept()
                pid = fork(client, [server, wakeup_reader, wakeup_writer, *clients.values()], search_path)
                if pid:
                    clients[pid] = client
                    client.sendall(f"{pid}\n".encode())


def import_all(kind: str) -> None:
    for name in MODULES[kind].split():
        module = importlib.import_module(name)
        if name == "orchestrator":
            for inner in pkgutil.walk_packages(module.__path__, "orchestrator."):
                if inner.name != PROGRAM:
                    importlib.import_module(inner.name)
    if "transformers" in sys.modules:
        for name in TRANSFORMERS_CLASSES:
            getattr(sys.modules["transformers"], name)


def send_exit_codes(clients: dict[int, socket.socket]) -> None:
    """Send the exit codes of programs that have ended to their clients."""
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
                    pass  # the client has disconnected


def kill_disconnected(clients: dict[int, socket.socket], ready: list[socket.socket]) -> None:
    """Kill the programs of clients that have disconnected: their sockets are readable, because they send nothing."""
    for pid, client in list(clients.items()):
        if client in ready:
            os.kill(pid, signal.SIGKILL)
            clients.pop(pid).close()


def fork(client: socket.socket, sockets: list[socket.socket], path: list[str]) -> int:
    """Fork a program, and return its process id, or 0 if the client has requested none.

    Args:
        client: connection to the client.
        sockets: all sockets of the server, which the program closes.
        path: sys.path of the server.
    """
    message, files, _, _ = socket.recv_fds(client, 1 << 20, 200)
    if not message:
        client.close()
        return 0
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for open_socket in (client, *sockets):
        open_socket.close()
    request = json.loads(message)
    renumber(files, request["files"])
    prepare(request, path)
    if request.get("normal_exit"):
        run_as_main(sys.argv[0])
        sys.exit()  # with everything that Python does at its exit
    os._exit(run_program(sys.argv[0]))


def renumber(files: list[int], numbers: list[int]) -> None:
    """Move the file descriptors to these numbers."""
    above = max(numbers) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def prepare(request: dict[str, Any], path: list[str]) -> None:
    """Make this process look like a new Python with the environment, arguments and folder of a request."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if request.get("file_limit"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"],) * 2)
    reseed()
    tempfile.tempdir = None
    sys.argv = request["argv"]
    module = sys.argv[0] == PROGRAM
    sys.path[:] = [request["cwd"] if module else str(Path(sys.argv[0]).parent), *path[1:]]
    for name in [name for name in sys.modules if name.startswith(IMPORTED_AFTER_FORK)]:
        del sys.modules[name]


def run_as_main(script: str) -> None:
    """Run a script as `__main__` in a new session."""
    os.setsid()
    main = types.ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main  # must exist until the interpreter ends
    exec(compile(Path(script).read_text(), script, "exec"), vars(main))


def run_program(script: str) -> int:
    """Run a script or module, and Python's exit functions, and return the exit code."""
    code = exit_code_of(script)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def reseed() -> None:
    """Seed random and numpy.random, as importing them does."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def exit_code_of(script: str) -> int:
    """Run a script or module, and return its exit code; print the traceback if it fails."""
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
