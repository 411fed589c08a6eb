"""Close listening sockets that a rank inherits: `node.py no-listen COMMAND` runs COMMAND without them.

Hydra leaves its proxy's listening socket open in every process that it starts. The script and its
child processes would keep it open.
"""

from __future__ import annotations

import os
import socket
import stat
from typing import NoReturn


def main(argv: list[str]) -> NoReturn:
    """Replace this process by the command of the arguments."""
    close_listening()
    os.execv(argv[0], argv)


def close_listening() -> None:
    """Close the listening sockets of this process; connected ones belong to the launcher."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if is_listening(fd):
            os.close(fd)


def is_listening(fd: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return False
        with socket.socket(fileno=os.dup(fd)) as duplicate:
            return bool(duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False
