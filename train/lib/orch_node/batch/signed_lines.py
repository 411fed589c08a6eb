"""Signed lines between the supervisor and the agents of a job.

Another host cannot add, change, repeat or drop a line unnoticed: each carries an HMAC of its
sender, its number and its content. The key of a connection is derived from the job's key and a random
number of each end, so lines of another connection are not accepted. The lines are not encrypted.
"""

from __future__ import annotations

import hmac
import secrets

SUPERVISOR, AGENT = b"supervisor", b"agent"
DIGEST = "sha256"
SIGNATURE_LENGTH = 64  # hexadecimal digits


class SignatureError(ConnectionError):
    """A line that the other end has not sent on this connection, or not at this position."""


class SignedLines:
    """The signatures of one end of a connection, for lines in both directions."""

    def __init__(self, key: bytes, *, sender: bytes, receiver: bytes) -> None:
        self.key = key
        self.sender, self.receiver = sender, receiver
        self.sent = self.received = 0

    def seal(self, line: bytes) -> bytes:
        """Return the line with its signature, ready to be sent."""
        signature = sign(self.key, self.sender, self.sent, line)
        self.sent += 1
        return signature + b" " + line

    def open(self, sealed: bytes) -> bytes:
        """Return the line that the other end has sealed.

        Raises:
            SignatureError: if it is not the next line of the other end.
        """
        signature, line = sealed[:SIGNATURE_LENGTH], sealed[SIGNATURE_LENGTH + 1 :]
        if not hmac.compare_digest(signature, sign(self.key, self.receiver, self.received, line.rstrip(b"\n") + b"\n")):
            raise SignatureError("a line does not have the signature of the other end")
        self.received += 1
        return line


def sign(key: bytes, sender: bytes, number: int, line: bytes) -> bytes:
    """Return the signature of the line with this number."""
    message = b"%s %d %s" % (sender, number, line)
    return hmac.new(key, message, DIGEST).hexdigest().encode()


def nonce() -> str:
    """Return a random number, used once."""
    return secrets.token_hex(16)


def connection_key(job_key: str, supervisor_nonce: str, agent_nonce: str) -> bytes:
    """Return the key that signs the lines of one connection."""
    message = f"orch {supervisor_nonce} {agent_nonce}"
    return hmac.new(job_key.encode(), message.encode(), DIGEST).digest()
