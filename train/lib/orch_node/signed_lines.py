"""Lines between two programs of a job over a connection: each is signed, but not encrypted.

Another host cannot add, change, repeat or drop a line unnoticed: each carries an HMAC of its sender, its number and its
content. One end sends a random number, and the other answers with a random number and a first line, which introduces
it. The key of all lines of the connection is derived from both numbers and the job's key, so lines of another
connection are not accepted.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time

SUPERVISOR, AGENT = b"supervisor", b"agent"
DIGEST = "sha256"
SIGNATURE_LENGTH = 64  # hexadecimal digits
NONCE_BYTES = 16
MAX_LINE_BYTES = 1 << 20


class SignatureError(ConnectionError):
    """A line that the other end has not sent on this connection, or not at this position."""


class SignedLines:
    """The signatures of one end of a connection, for lines in both directions."""

    def __init__(self, key: bytes, *, sender: bytes, receiver: bytes) -> None:
        self.key = key
        self.sender, self.receiver = sender, receiver
        self.sent = self.received = 0

    def signature(self, sender: bytes, number: int, line: bytes) -> bytes:
        """Return the signature of the line with this number."""
        return hmac.new(self.key, b"%s %d %s" % (sender, number, line), DIGEST).hexdigest().encode()

    def sign(self, line: bytes) -> bytes:
        """Return the line with its signature, ready to be sent."""
        signature = self.signature(self.sender, self.sent, line)
        self.sent += 1
        return signature + b" " + line

    def verify(self, signed: bytes) -> bytes:
        """Return the line that the other end has signed.

        Raises:
            SignatureError: if it is not the next line of the other end.
        """
        signature, line = signed[:SIGNATURE_LENGTH], signed[SIGNATURE_LENGTH + 1 :]
        if not hmac.compare_digest(signature, self.signature(self.receiver, self.received, line.rstrip(b"\n") + b"\n")):
            raise SignatureError("a line does not have the signature of the other end")
        self.received += 1
        return line


def connection_key(job_key: str, supervisor_nonce: str, agent_nonce: str) -> bytes:
    """Return the key that signs the lines of one connection."""
    return hmac.new(job_key.encode(), f"orch {supervisor_nonce} {agent_nonce}".encode(), DIGEST).digest()


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
    supervisor_nonce = receive_line(connection, seconds).strip().decode(errors="replace")
    agent_nonce = secrets.token_hex(NONCE_BYTES)
    lines = SignedLines(connection_key(job_key, supervisor_nonce, agent_nonce), sender=AGENT, receiver=SUPERVISOR)
    connection.sendall(agent_nonce.encode() + b" " + lines.sign(line))
    connection.settimeout(None)
    return lines


def authenticate(connection: socket.socket, job_key: str, seconds: float) -> tuple[SignedLines, bytes]:
    """Return the signatures of the lines of a connection, and the line with which the other end introduces itself.

    Raises:
        OSError: if the other end does not know the key, or does not introduce itself in time.
    """
    supervisor_nonce = secrets.token_hex(NONCE_BYTES)
    connection.settimeout(seconds)
    connection.sendall(supervisor_nonce.encode() + b"\n")
    agent_nonce, _, signed = receive_line(connection, seconds).partition(b" ")
    key = connection_key(job_key, supervisor_nonce, agent_nonce.decode(errors="replace"))
    lines = SignedLines(key, sender=SUPERVISOR, receiver=AGENT)
    connection.settimeout(None)
    return lines, lines.verify(signed)
