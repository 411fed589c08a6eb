"""What a rank inherits of its launcher and must not have: hydra leaves its proxy's listening socket
open in every process that it starts, where a script, and all that it starts, would hold it.

`node.py unlistening COMMAND` becomes that command without them.
"""

from __future__ import annotations

import os
import socket
import stat
from typing import NoReturn


def main(argv: list[str]) -> NoReturn:
    close_listening()
    os.execv(argv[0], argv)


def close_listening() -> None:
    """Close the sockets of this process that listen; those that are connected are the launcher's
    way to its ranks."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if listens(number):
            os.close(number)


def listens(descriptor: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        with socket.socket(fileno=os.dup(descriptor)) as one:
            return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False
