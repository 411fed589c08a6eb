"""Run a program that warm_server.py forks: `python -IS warm_client.py SOCKET SCRIPT ARGS...`

A launcher starts this client instead of the program. The program gets the client's environment, working folder and
open files. The client forwards signals to the program, and ends with the program's exit code or signal.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

FILES = "/proc/self/fd"


def main(path: str, argv: list[str]) -> int:
    """Return the exit code of the program, or the negative number of the signal that ended it."""
    files = open_files()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        request = {"argv": argv, "env": dict(os.environ), "cwd": os.getcwd(), "files": files, "normal_exit": True}
        socket.send_fds(server, [json.dumps(request).encode()], files)
        responses = server.makefile()
        pid = int(responses.readline())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        return int(responses.readline())


def open_files() -> list[int]:
    """Return the numbers of all open files, without that of the listing itself."""
    return [int(number) for number in os.listdir(FILES) if os.path.exists(f"{FILES}/{number}")]


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2:])
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
