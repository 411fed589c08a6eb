"""How a program on another node of a job introduces itself over a connection: by a line signed with the job's key.

The supervisor's end sends a random number. The other end answers with a random number and the signed line; the key of
all lines of the connection is derived from both numbers and the job's key.
"""

from __future__ import annotations

import socket
import time

from orch_node.protocol.batch import AGENT, SUPERVISOR, SignatureError, SignedLines, connection_key, nonce

MAX_LINE_BYTES = 1 << 20


def receive_line(connection: socket.socket, seconds: float) -> bytes:
    """Return the next line, and leave what follows it to later readers of the connection.

    Raises:
        OSError: if the line does not arrive in time, is too long, or has no end.
    """
    deadline = time.monotonic() + seconds
    line = b""
    while not line.endswith(b"\n"):
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        available = connection.recv(1 << 16, socket.MSG_PEEK)
        line += connection.recv(available.find(b"\n") + 1 or len(available))
        if not available or len(line) > MAX_LINE_BYTES:
            raise SignatureError("the other end has sent no line")
    return line


def introduce(connection: socket.socket, job_key: str, line: bytes, seconds: float) -> SignedLines:
    """Send the line that introduces this end to the supervisor's; return the signatures of all lines.

    Raises:
        OSError: if the other end is not a supervisor.
    """
    supervisor_nonce, agent_nonce = receive_line(connection, seconds).strip().decode(errors="replace"), nonce()
    lines = SignedLines(connection_key(job_key, supervisor_nonce, agent_nonce), sender=AGENT, receiver=SUPERVISOR)
    connection.sendall(agent_nonce.encode() + b" " + lines.sign(line))
    connection.settimeout(None)
    return lines


def authenticate(connection: socket.socket, job_key: str, seconds: float) -> tuple[SignedLines, bytes]:
    """Return the signatures of the lines of a connection, and the line with which the other end introduces itself.

    Raises:
        OSError: if the other end does not know the key, or does not introduce itself in time.
    """
    supervisor_nonce = nonce()
    connection.settimeout(seconds)
    connection.sendall(supervisor_nonce.encode() + b"\n")
    agent_nonce, _, signed = receive_line(connection, seconds).partition(b" ")
    key = connection_key(job_key, supervisor_nonce, agent_nonce.decode(errors="replace"))
    lines = SignedLines(key, sender=SUPERVISOR, receiver=AGENT)
    line = lines.verify(signed)
    connection.settimeout(None)
    return lines, line
