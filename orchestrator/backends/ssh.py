"""A node behind SSH, through fabric. Host keys are verified, also those of a jump host."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.command import Command
from orchestrator.errors import ExecuteError

if TYPE_CHECKING:
    import paramiko

# fabric and paramiko are imported where a node is reached: planning is quicker without them.
CONNECT_SECONDS = 10
CHUNK = 1 << 20
Result = TypeVar("Result")


class Ssh:
    """Does a plan's steps on another machine, as the ssh configuration file describes it."""

    def __init__(self, node: str, ssh_config: str) -> None:
        self.node = node
        self.ssh_config = ssh_config

    @cached_property
    def connection(self) -> Any:
        from fabric import Config, Connection

        connection = Connection(
            self.node,
            config=Config(runtime_ssh_path=self.ssh_config),
            connect_timeout=CONNECT_SECONDS,
        )
        trust_known_hosts_only(connection)
        return connection

    @cached_property
    def sftp(self) -> paramiko.SFTPClient:
        client: paramiko.SFTPClient = self.attempt(self.connection.sftp, "reach it")
        return client

    def attempt(self, act: Callable[[], Result], what: str) -> Result:
        """Do something there. Raises ExecuteError that names the node and what it was."""
        import paramiko

        try:
            return act()
        except paramiko.BadHostKeyException as error:
            raise ExecuteError(
                f"{self.node}: its host key is not the recorded one ({error.key.get_name()}).",
                hint="Somebody may be in between, or the machine was set up anew: then remove its "
                "old key and run `orch provision`.",
            ) from None
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ExecuteError(f"{self.node}: could not {what}: {error}") from None

    def put(self, path: str, content: str) -> None:
        self.write(path, content.encode())

    def send(self, source: str, path: str) -> None:
        self.write(path, Path(source).read_bytes())

    def write(self, path: str, content: bytes) -> None:
        def act() -> None:
            self.run(("mkdir", "-p", str(PurePosixPath(path).parent)))
            with self.sftp.open(f"{path}.tmp", "wb") as file:
                file.write(content)
            self.sftp.posix_rename(f"{path}.tmp", path)

        self.attempt(act, f"write {path}")

    def start(self, command: Command, log: str) -> None:
        """Start a program that lives on when the connection is gone."""
        detached = f"setsid -f {command.shell()} > {shlex.quote(log)} 2>&1 < /dev/null"
        self.attempt(lambda: self.run(("sh", "-c", detached)), f"start {command.argv[0]}")

    def read(self, path: str, offset: int = 0) -> bytes | None:
        """The file's bytes from `offset` on, or None if it is not there."""

        def act() -> bytes | None:
            try:
                with self.sftp.open(path, "rb") as file:
                    file.seek(offset)
                    return bytes(file.read())
            except FileNotFoundError:
                return None

        return self.attempt(act, f"read {path}")

    def ask(self, argv: tuple[str, ...]) -> str:
        """What a program there prints. Raises ExecuteError if it fails."""

        def act() -> str:
            done = self.connection.run(shlex.join(argv), hide=True, warn=True, in_stream=False)
            if not done.ok:
                raise OSError(done.stderr.strip() or f"exit code {done.exited}")
            return str(done.stdout)

        return self.attempt(act, f"run {argv[0]}")

    def chunks(self, path: str, offset: int) -> Iterator[bytes]:
        """The file's bytes from `offset` on: one stream, as fast as the line is."""
        what = f"read {path}"
        command = shlex.join(("tail", "-c", f"+{offset + 1}", "--", path))
        self.attempt(self.connection.open, what)
        channel = self.attempt(self.connection.transport.open_session, what)
        with channel:
            self.attempt(lambda: channel.exec_command(command), what)
            while chunk := self.attempt(lambda: channel.recv(CHUNK), what):
                yield chunk
            if channel.recv_exit_status() != 0:
                words = channel.recv_stderr(CHUNK).decode(errors="replace").strip()
                raise ExecuteError(f"{self.node}: could not {what}: {words or 'it was cut off'}")

    def list(self, folder: str) -> list[str]:
        """Names in a folder; none if it is not there."""

        def act() -> list[str]:
            try:
                return sorted(self.sftp.listdir(folder))
            except FileNotFoundError:
                return []

        return self.attempt(act, f"list {folder}")

    def terminate(self, pid: int) -> None:
        self.attempt(lambda: self.run(("kill", "-TERM", str(pid)), check=False), f"stop {pid}")

    def alive(self, pid: int, marker: str) -> bool:
        """Whether the process lives and its arguments hold `marker` (pids are used again)."""
        arguments = self.read(f"/proc/{pid}/cmdline") or b""
        return marker.encode() in arguments

    def run(self, argv: tuple[str, ...], *, check: bool = True) -> None:
        done = self.connection.run(shlex.join(argv), hide=True, warn=True, in_stream=False)
        if check and not done.ok:
            raise OSError(done.stderr.strip() or f"exit code {done.exited}")

    def close(self) -> None:
        self.connection.close()


def trust_known_hosts_only(connection: Any) -> None:
    """fabric would accept unknown host keys; here only those of the known_hosts file count."""
    import paramiko
    from fabric import Connection

    while isinstance(connection, Connection):
        lookup = connection.config.base_ssh_config.lookup(connection.original_host)
        for path in shlex.split(lookup.get("userknownhostsfile", "~/.ssh/known_hosts")):
            if Path(path).expanduser().exists():
                connection.client.load_host_keys(str(Path(path).expanduser()))
        connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        connection = connection.gateway
