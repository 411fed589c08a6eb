"""Ranks close the listening sockets that they inherit from the launcher."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from orchestrator.files import LIB

CLOSE_LISTENING = """
import os, sys
from orch_node.rank.listening_sockets import close_listening
close_listening()
for fd in map(int, sys.argv[1:]):
    try: print(bool(os.fstat(fd)))
    except OSError: print(False)
"""


def test_rank_closes_inherited_listening_sockets() -> None:
    """Pass the sockets open and without a name, as hydra does."""
    first, second = socket.socketpair()
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as server, first, second:
        fds = (server.fileno(), first.fileno(), writer)
        command = [sys.executable, "-c", CLOSE_LISTENING, *map(str, fds)]
        environment = os.environ | {"PYTHONPATH": str(LIB)}
        result = subprocess.run(command, env=environment, pass_fds=fds, capture_output=True, text=True, check=True)
    os.close(reader)
    os.close(writer)
    assert result.stdout.split() == ["False", "True", "True"]
