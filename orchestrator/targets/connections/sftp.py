"""Open a client for a node's files whose server may be started by a login shell that prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import paramiko

# A packet of SFTP begins with its length, which is below 2^24: its first byte is zero, which no text contains.
FIRST_BYTE = b"\0"


class SftpChannel:
    """A channel to an SFTP server without what is received before the server's first packet."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self.channel = channel
        self.started = False

    def recv(self, size: int) -> bytes:
        """Return at most `size` bytes of the server's packets, or b"" at the end of the connection."""
        if self.started:
            return self.channel.recv(size)
        while (byte := self.channel.recv(1)) not in (FIRST_BYTE, b""):
            pass
        self.started = True
        return byte

    def __getattr__(self, name: str) -> Any:
        return getattr(self.channel, name)


def open_sftp(transport: paramiko.Transport) -> paramiko.SFTPClient:
    """Return a client for the files of a node; raise the errors of paramiko."""
    from paramiko import SFTPClient

    channel = transport.open_session()
    channel.invoke_subsystem("sftp")
    return SFTPClient(cast("paramiko.Channel", SftpChannel(channel)))
