"""Stands for a program that warm_server.py forks: `python -IS warm_client.py SOCKET SCRIPT ARGS...`

It has the program's place below a launcher: its environment, folder and open files become those of
the program, signals are passed on, and it ends as the program has ended.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main(path: str, argv: list[str]) -> int:
    """-> how the program ended: its exit code, negative for a signal."""
    files = open_files()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        request = {
            "argv": argv,
            "env": dict(os.environ),
            "cwd": os.getcwd(),
            "files": files,
            "file_limit": None,
            "as_any": True,
        }
        socket.send_fds(server, [json.dumps(request).encode()], files)
        answers = server.makefile()
        pid = int(answers.readline())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        return int(answers.readline())


def open_files() -> list[int]:
    """All but the one that listed them."""
    return [number for number in map(int, os.listdir("/proc/self/fd")) if is_open(number)]


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2:])
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
