"""A node behind SSH, through fabric. Host keys are verified, also those of a jump host."""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from orch_node import disk

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.command import LOGIN_SCRIPT_HINT, Command, CommandResult, program_name
from orchestrator.targets.connections.answers import NO_STATUS, gathered

if TYPE_CHECKING:
    import paramiko

# fabric and paramiko are imported where a node is reached: planning is quicker without them.
CONNECT_SECONDS = 10
SILENCE_SECONDS = 15.0
RUN_SECONDS = 30.0  # for mkdir, kill and the start of a program, on a slow node
KEEPALIVE_SECONDS = 5
CHUNK = 1 << 20
FEED_SECONDS = 600.0  # for what a program makes of all that it was sent
QUIET_SECONDS = 120.0  # for a disk that is slow to give a file
LARGEST_LINE = 1 << 24
# Its arguments are looked at and it is signalled in one command, so that it is still the same.
TERMINATE = r"""words=$(tr '\0' '\n' < "/proc/$1/cmdline"; echo .)
case $words in *"$2"*) kill -INT "$1";; esac"""
TRY_TO_WRITE = f"""umask 077; head -c {disk.TEST_BYTES} /dev/zero > "$1"; code=$?
rm -f -- "$1"; exit $code"""
LARGEST_FOLDER = 1_000_000  # names
UNKNOWN_HOST_KEY = "its host key is not known here"
UNKNOWN_USER = "it does not let this key or user in"
UNKNOWN_NAME = "its name is not known here"
FETCH = "`orch fetch` brings the files of a run here, its logs among them."
# What paramiko says of a connection that it could not open -> what it means.
REFUSALS = (
    ("not found in known_hosts", UNKNOWN_HOST_KEY),
    ("uthentication", UNKNOWN_USER),
    ("Name or service not known", UNKNOWN_NAME),
    ("name resolution", UNKNOWN_NAME),
)
Result = TypeVar("Result")


class Ssh:
    """Does a plan's steps on another machine, as the ssh configuration file describes it: the
    user's own where none is named."""

    def __init__(self, node: str, ssh_config: str | None, connect_seconds: int = CONNECT_SECONDS) -> None:
        self.node = node
        self.ssh_config = ssh_config
        self.connect_seconds = connect_seconds

    @cached_property
    def connection(self) -> Any:
        """Open, and such that a node that has died is noticed: TCP alone takes 15 minutes.

        Raises what paramiko raises.
        """
        from fabric import Config, Connection

        connection = Connection(
            self.node, config=Config(runtime_ssh_path=self.ssh_config), connect_timeout=self.connect_seconds
        )
        trust_known_hosts_only(connection)
        # A lost node is told in our words; else its threads would write stack traces to the screen.
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        connection.open()
        notice_silence(connection.transport)
        return connection

    @cached_property
    def sftp(self) -> paramiko.SFTPClient:
        client: paramiko.SFTPClient = self.attempt(lambda: self.connection.sftp(), "reach it")
        channel = client.get_channel()
        if channel is not None:
            channel.settimeout(SILENCE_SECONDS)
        return client

    def reset(self) -> None:
        """Forget the connection: the next request makes a new one."""
        connection = self.__dict__.pop("connection", None)
        self.__dict__.pop("sftp", None)
        if connection is not None:
            with contextlib.suppress(Exception):  # whatever state it is in
                connection.close()

    def attempt(self, act: Callable[[], Result], what: str) -> Result:
        """Do something there. Raises ExecuteError that names the node and what it was, and
        ConnectionLost if there is no connection."""
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
            kind = ExecuteError if self.connected(error) else ConnectionLost
            why = str(error) or type(error).__name__
            if "connection" not in self.__dict__:
                raise ConnectionLost(describe_refusal(self.node, why)) from None
            hint = "" if kind is ConnectionLost else self.look
            raise kind(f"{self.node}: could not {what}: {why}", hint=hint) from None
        except UnicodeError:
            raise ExecuteError(
                f"{self.node}: could not {what}: a name there is not in UTF-8.",
                hint="Rename that file: `ls -b` shows the bytes of names.",
            ) from None
        except (paramiko.SFTPError, struct.error, OverflowError) as error:
            raise ExecuteError(f"{self.node}: could not {what}: {error}", hint=self.look) from None

    @property
    def look(self) -> str:
        return f"Look on {self.node} whether this user may do that, and whether the disk has room."

    def connected(self, error: Exception) -> bool:
        """Whether the error came over a connection that still stands."""
        if isinstance(error, (EOFError, TimeoutError)) or "connection" not in self.__dict__:
            return False
        transport = self.connection.transport
        return transport is not None and bool(transport.is_active())

    def put(self, path: str, content: str) -> None:
        self.write(path, content.encode())

    def send(self, source: str, path: str) -> None:
        self.write(path, Path(source).read_bytes())

    def write(self, path: str, content: bytes) -> None:
        def act() -> None:
            folder = str(PurePosixPath(path).parent)
            self.run(("sh", "-c", 'umask 077 && mkdir -p -- "$1"', "sh", folder))
            try:
                with self.sftp.open(f"{path}.tmp", "wb") as file:
                    file.chmod(0o600)
                    file.write(content)
                self.sftp.posix_rename(f"{path}.tmp", path)
            except OSError as error:  # SFTP calls a full disk just `Failure`
                raise OSError(self.refusal(folder) or str(error)) from None

        self.attempt(act, f"write {path}")

    def refusal(self, folder: str) -> str:
        """Why nothing can be written there now, in words; nothing if it can. Raises OSError."""
        try:
            self.run(("env", "LC_ALL=C", "sh", "-c", TRY_TO_WRITE, "sh", f"{folder}/.room"))
        except TimeoutError:
            raise
        except OSError as error:
            return disk.describe_output(folder, str(error).splitlines()[0])
        return ""

    def start(self, command: Command, log: str) -> None:
        """Start a program that lives on when the connection is gone."""
        made = f"(umask 077 && : >> {shlex.quote(log)})"
        detached = f"setsid -f {command.shell()} >> {shlex.quote(log)} 2>&1 < /dev/null"
        started = ("sh", "-c", f"{made} && {detached}")
        self.attempt(lambda: self.run(started), f"start {command.argv[0]}")

    def read(self, path: str, offset: int = 0, most: int | None = None) -> bytes | None:
        """The file's bytes from `offset` on, as many as `most`, or None if it is not there."""

        def act() -> bytes | None:
            try:
                with self.sftp.open(path, "rb") as file:
                    file.seek(offset)
                    return bytes(file.read(most))
            except FileNotFoundError:
                return None

        return self.attempt(act, f"read {path}")

    def size(self, path: str) -> int:
        """Bytes of a plain file; 0 for anything else."""

        def act() -> int:
            try:
                found = self.sftp.stat(path)
            except FileNotFoundError:
                return 0
            return found.st_size or 0 if stat.S_ISREG(found.st_mode or 0) else 0

        return self.attempt(act, f"read {path}")

    def chunks(self, path: str, offset: int) -> Iterator[bytes]:
        """The file's bytes from `offset` on: one stream, as fast as the line is."""
        what = f"read {path}"
        command = shlex.join(("tail", "-c", f"+{offset + 1}", "--", path))
        channel = self.attempt(lambda: self.connection.transport.open_session(), what)
        with channel:
            channel.settimeout(QUIET_SECONDS)
            self.attempt(lambda: channel.exec_command(command), what)  # nosec
            while chunk := self.attempt(lambda: channel.recv(CHUNK), what):
                yield chunk
            if channel.recv_exit_status() != 0:
                words = channel.recv_stderr(CHUNK).decode(errors="replace").strip()
                said = words or "it was cut off"
                raise ExecuteError(f"{self.node}: could not {what}: {said}", hint=self.look)

    def list(self, folder: str) -> list[str]:
        """Names in a folder; none if it is not there."""

        def act() -> list[str]:
            try:
                found = islice(self.sftp.listdir_iter(folder), LARGEST_FOLDER)
                return sorted(one.filename for one in found)
            except FileNotFoundError:
                return []

        return self.attempt(act, f"list {folder}")

    def terminate(self, pid: int, marker: str) -> None:
        """Ask the process to end if it is the one whose arguments hold `marker`: that is looked at
        there, in the same moment, as its number may be another's by now."""
        words = ("sh", "-c", TERMINATE, "sh", str(pid), marker.replace("\0", "\n"))
        self.attempt(lambda: self.run(words, check=False), f"stop {pid}")

    def alive(self, pid: int, marker: str) -> bool:
        """Whether the process lives and its arguments hold `marker` (pids are used again)."""
        folder = f"/proc/{pid}"

        def act() -> bytes:
            try:
                with self.sftp.open(f"{folder}/cmdline", "rb") as file:
                    return bytes(file.read())
            except OSError as error:  # of one that ends in between, SFTP says just `Failure`
                with contextlib.suppress(FileNotFoundError):
                    self.sftp.stat(folder)
                    raise error
                return b""

        return marker.encode() in self.attempt(act, f"read {folder}/cmdline")

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> CommandResult:
        """Run a program there to its end. Raises ExecuteError."""

        def act() -> CommandResult:
            channel = self.connection.transport.open_session()
            with channel:
                channel.exec_command(shlex.join(argv))  # nosec
                return gathered(channel, self.node, seconds)

        return self.attempt(act, f"run {program_name(argv)}")

    def feed(self, argv: tuple[str, ...], content: bytes) -> None:
        """Run a program there that reads this to its end. Raises ExecuteError if it fails."""

        def act() -> CommandResult:
            channel = self.connection.transport.open_session()
            with channel:
                channel.settimeout(QUIET_SECONDS)
                channel.exec_command(shlex.join(argv))  # nosec
                channel.sendall(content)
                channel.shutdown_write()
                return gathered(channel, self.node, FEED_SECONDS)

        answer = self.attempt(act, f"run {program_name(argv)}")
        if answer.code != 0:
            words = answer.err.strip() or f"exit code {answer.code}"
            raise ExecuteError(f"{self.node}: {program_name(argv)}: {words}", hint=self.look)

    def stream(self, argv: tuple[str, ...]) -> Iterator[str]:
        """The lines of a program there as they come. Raises ConnectionLost if it breaks off,
        ExecuteError if the program fails."""

        def start() -> paramiko.Channel:
            channel: paramiko.Channel = self.connection.transport.open_session()
            channel.exec_command(shlex.join(argv))  # nosec
            return channel

        channel = self.attempt(start, f"start {program_name(argv)}")
        with channel, channel.makefile("rb") as lines:
            while line := self.attempt(lambda: lines.readline(LARGEST_LINE), "read its logs"):
                if len(line) == LARGEST_LINE:
                    raise ExecuteError(
                        f"{self.node}: {program_name(argv)} sends lines without an end.", hint=LOGIN_SCRIPT_HINT
                    )
                yield bytes(line).decode(errors="replace")
            code = channel.recv_exit_status()
            if code == NO_STATUS:  # the connection ended, not the program
                raise ConnectionLost(f"{self.node}: the connection was lost.")
            if code != 0:
                words = channel.recv_stderr(CHUNK).decode(errors="replace").strip()
                said = words or f"{program_name(argv)}: exit code {code}"
                raise ExecuteError(f"{self.node}: {said}", hint=FETCH)

    def run(self, argv: tuple[str, ...], *, check: bool = True) -> None:
        from invoke.exceptions import CommandTimedOut

        try:
            done = self.connection.run(shlex.join(argv), hide=True, warn=True, in_stream=False, timeout=RUN_SECONDS)
        except CommandTimedOut:
            raise TimeoutError(f"no answer for {RUN_SECONDS:.0f} s") from None
        if check and not done.ok:
            raise OSError(done.stderr.strip() or f"exit code {done.exited}")

    def close(self) -> None:
        self.reset()


def notice_silence(transport: paramiko.Transport) -> None:
    """Something is sent every few seconds, and what is not acknowledged ends the connection."""
    transport.set_keepalive(KEEPALIVE_SECONDS)
    transport.channel_timeout = SILENCE_SECONDS
    if isinstance(transport.sock, socket.socket):  # not where a ProxyCommand stands between
        milliseconds = int(SILENCE_SECONDS * 1000)
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def describe_refusal(node: str, reason: str) -> str:
    """Return why there is no connection to a node, from what paramiko says."""
    for signature, description in REFUSALS:
        if signature in reason:
            return f"{node}: {description}"
    return f"{node} does not answer ({reason})"


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
