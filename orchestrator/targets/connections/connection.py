"""Run programs and copy files on a node through SSH, with fabric.

The host keys of the node and of its jump hosts are verified.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import re
import shlex
import socket
import stat
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar, cast

from orch_node import disk
from orch_node.reach import StartFilter, program_errors, shell_command

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.files import tomllib
from orchestrator.model.hosts import keyscan_command, known_host_name
from orchestrator.model.printable import Command, CommandResult, program_name
from orchestrator.targets.connections import program_output

# fabric and paramiko are imported only when a node is contacted, so that planning starts faster.
if TYPE_CHECKING:
    import paramiko


# A packet of SFTP begins with its length, which is below 2^24: its first byte is zero, which no text contains.
FIRST_BYTE = b"\0"
CONNECT_SECONDS = 10
SILENCE_SECONDS = 15.0  # without any sign of the node, before its connection counts as lost
RUN_SECONDS = 30.0  # time limit for mkdir, kill and the start of a program, on a slow node
KEEPALIVE_SECONDS = 5
TRANSFER_SECONDS = 120.0  # time limit for each read or write, for slow disks
# One command compares the arguments and sends the signal, so that the pid cannot be reused in between.
TERMINATE = r"""arguments=$(tr '\0' '\n' < "/proc/$1/cmdline"; echo .)
case $arguments in *"$2"*) kill -INT "$1";; esac"""
TEST_WRITE = f"""umask 077; head -c {disk.TEST_BYTES} /dev/zero > "$1"; code=$?
rm -f -- "$1"; exit $code"""
OPENSSH_FAILED = 255  # the exit code of ssh if the connection fails
# The node must answer within SILENCE_SECONDS, and what a configuration sets for a user's own sessions is off.
OPENSSH_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    f"ServerAliveInterval={KEEPALIVE_SECONDS}",
    "ServerAliveCountMax=3",
    "ClearAllForwardings=yes",
    "RemoteCommand=none",
    "RequestTTY=no",
    "LogLevel=ERROR",
)
KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
DEFAULT_AGENT = "SSH_AUTH_SOCK"  # the value of IdentityAgent for the agent in this variable
MAX_NAMES = 1_000_000  # in a folder
KNOWN_MESSAGES = Path(__file__).with_name("known_messages.toml")


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


Result = TypeVar("Result")


class Ssh:
    """A node that is reached through SSH.

    The node is looked up in the given ssh configuration file, or in the user's if none is given.
    """

    def __init__(self, node: str, ssh_config: str | None, connect_seconds: int = CONNECT_SECONDS) -> None:
        self.node = node
        self.ssh_config = ssh_config
        self.connect_seconds = connect_seconds
        self.hops: list[Any] = []  # of the latest attempt to connect: the node, then its jump hosts

    @cached_property
    def connection(self) -> Any:
        """Return an open connection, or raise the error of paramiko.

        It fails when the node has not acknowledged anything for SILENCE_SECONDS; TCP alone needs 15 minutes.
        """
        connection = self.new_connection()
        self.hops = list(connection_chain(connection))
        trust_known_hosts_only(connection)
        use_identity_agents(connection)
        # paramiko's threads would print stack traces when a node is lost, which orch reports itself.
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        connection.open()
        transport = connection.transport
        transport.set_keepalive(KEEPALIVE_SECONDS)
        transport.channel_timeout = SILENCE_SECONDS
        if isinstance(transport.sock, socket.socket):  # a ProxyCommand has no socket
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_SECONDS * 1000))
        return connection

    def new_connection(self) -> Any:
        """Return a connection that is not open yet."""
        from fabric import Config, Connection

        config = Config(runtime_ssh_path=self.ssh_config)
        return Connection(self.node, config=config, connect_timeout=self.connect_seconds)

    @cached_property
    def sftp(self) -> paramiko.SFTPClient:
        """Return a client for the node's files; raise ExecuteError or ConnectionLost if there is none."""
        from paramiko import SFTPClient

        def start() -> SFTPClient:
            channel = self.connection.transport.open_session()
            channel.settimeout(SILENCE_SECONDS)
            channel.invoke_subsystem("sftp")
            return SFTPClient(cast("paramiko.Channel", SftpChannel(channel)))

        return self.attempt(start, "start its SFTP server")

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        connection = self.__dict__.pop("connection", None)
        self.__dict__.pop("sftp", None)
        if connection is not None:
            with contextlib.suppress(Exception):  # closing a broken connection may fail in any way
                connection.close()

    def attempt(self, action: Callable[[], Result], description: str) -> Result:
        """Return the result of an action on the node, and translate its errors.

        Args:
            action: called without arguments; may raise OSError and the errors of paramiko.
            description: what the action does, as the end of "could not ...".

        Raises:
            ConnectionLost: if the node cannot be reached.
            ExecuteError: if the action fails although the node can be reached.
        """
        import paramiko

        try:
            return action()
        except paramiko.BadHostKeyException as error:
            hop = self.failed_hop()
            name, file, key = shlex.quote(host_key_name(hop)), known_hosts_file(hop), error.key.get_name()
            raise ExecuteError.about("other-host-key", node=self.title_of(hop), key=key, file=file, name=name) from None
        except UnicodeError:
            raise ExecuteError.about("name-of-file", node=self.node, action=description) from None
        except (OSError, EOFError, paramiko.SSHException, paramiko.SFTPError, struct.error, OverflowError) as error:
            name = "no answer" if isinstance(error, TimeoutError) else type(error).__name__
            reason = str(error).removeprefix("[Errno None] ") or name
            if "connection" not in self.__dict__:
                raise self.connection_error(reason) from None
            if isinstance(error, paramiko.ChannelException):
                raise ExecuteError.about("second-session", node=self.node) from None
            message, transport = f"{self.node}: could not {description}: {reason}", self.connection.transport
            if isinstance(error, (EOFError, TimeoutError)) or not (transport and transport.is_active()):
                raise ConnectionLost(message) from None
            raise ExecuteError(message, hint=self.node_hint) from None

    def connection_error(self, reason: str) -> ConnectionLost:
        """Return the error for a connection that cannot be opened, from the message of paramiko."""
        for message in tomllib.loads(KNOWN_MESSAGES.read_text())["messages"]:
            if re.search(message["pattern"], reason):
                hop = self.failed_hop()
                command = keyscan_command(hop.host, hop.port, hop.ssh_config.get("hostkeyalias"))
                hint = message["hint"].strip().format(command=command, known_hosts=known_hosts_file(hop))
                return ConnectionLost(f"{self.title_of(hop)}: {message['problem']}", hint=hint)
        return ConnectionLost(f"{self.title_of(self.failed_hop())} does not answer ({reason})")

    def failed_hop(self) -> Any:
        """Return the jump host that could not be connected to, or the node if its jump hosts are connected."""
        hops = self.hops or [self.new_connection()]
        return next((hop for hop in reversed(hops) if not hop.is_connected), hops[0])

    def title_of(self, hop: Any) -> str:
        """Return the name of the node, and that of its jump host if the connection is to that one."""
        return self.node if hop.original_host == self.node else f"{self.node} (jump host {hop.original_host})"

    @property
    def node_hint(self) -> str:
        """Return the hint for failures whose cause has to be found on the node."""
        return f"Check on {self.node} whether this user may do that, and whether the disk has free space."

    def put(self, path: str, content: str | bytes) -> None:
        """Write a private file, whole or not at all, and create its folder; raise ExecuteError if that fails."""
        folder = str(PurePosixPath(path).parent)

        def put_in_place() -> None:
            try:
                with self.sftp.open(f"{path}.tmp", "wb") as file:
                    file.chmod(0o600)
                    file.write(content.encode() if isinstance(content, str) else content)
                self.sftp.posix_rename(f"{path}.tmp", path)
            except FileNotFoundError:
                raise
            except OSError as error:  # SFTP reports a full disk only as `Failure`
                raise OSError(self.write_problem(folder) or str(error)) from None

        def act() -> None:
            try:
                put_in_place()
            except FileNotFoundError:  # a program needs a login shell, which may take 0.2 s to start
                self.run(("sh", "-c", 'umask 077 && mkdir -p -- "$1"', "sh", folder))
                put_in_place()

        self.attempt(act, f"write {path}")

    def write_problem(self, folder: str) -> str:
        """Return why a folder cannot be written to, or '' if it can.

        Raises:
            ConnectionLost: if the node does not respond.
        """
        argv = ("env", "LC_ALL=C", "sh", "-c", TEST_WRITE, "sh", f"{folder}/.room")
        result = self.capture(argv, seconds=RUN_SECONDS)
        reason = result.err.strip() or f"exit code {result.code}"
        return disk.describe_output(folder, reason.splitlines()[0]) if result.code != 0 else ""

    def start(self, command: Command, log: str) -> None:
        """Start a program that continues after the connection is closed."""
        create_log = f"(umask 077 && : >> {shlex.quote(log)})"
        start_detached = f"setsid -f {command.shell()} >> {shlex.quote(log)} 2>&1 < /dev/null"
        argv = ("sh", "-c", f"{create_log} && {start_detached}")
        self.attempt(lambda: self.run(argv), f"start {command.argv[0]}")

    def read(self, path: str, offset: int = 0, limit: int | None = None) -> bytes | None:
        """Return at most `limit` bytes of a regular file from `offset` on, or None if there is no file."""

        def act() -> bytes | None:
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(self.sftp.stat(path).st_mode or 0):  # a device has no end, a pipe may wait for ever
                    return b""
                with self.sftp.open(path, "rb") as file:
                    file.seek(offset)
                    return bytes(file.read(limit))
            return None

        return self.attempt(act, f"read {path}")

    def open_program(self, argv: tuple[str, ...]) -> contextlib.AbstractContextManager[program_output.PipedProgram]:
        """Start a program on the node through OpenSSH, which moves large amounts of data faster than paramiko.

        Raises:
            ExecuteError: if this machine has no OpenSSH.
        """
        return program_output.piped_program(self.openssh_command(argv), partial(self.program_failure, argv))

    def openssh_command(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command of OpenSSH that runs a program on the node."""
        config = ("-F", self.ssh_config) if self.ssh_config else home_config()
        options = (f"-o{option}" for option in (*OPENSSH_OPTIONS, f"ConnectTimeout={self.connect_seconds}"))
        return ("ssh", *config, *options, "--", self.node, shell_command(argv))

    def program_failure(self, argv: tuple[str, ...], code: int, output: str) -> ExecuteError:
        """Return the error for a program that has ended too early."""
        reason = program_output.last_line(program_errors(output)) or f"exit code {code}"
        if code != OPENSSH_FAILED:
            return ExecuteError(f"{self.node}: {program_name(argv)}: {reason}.", hint=self.node_hint)
        try:
            self.attempt(lambda: self.connection, "reach it")  # explains why a node cannot be reached
        except ExecuteError as error:
            return error
        return ConnectionLost(f"{self.node}: the connection was lost ({reason}).")

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of what a folder has by name, in order, or nothing if there is no folder."""

        def act() -> dict[str, int]:
            with contextlib.suppress(FileNotFoundError):
                entries = islice(self.sftp.listdir_iter(folder), MAX_NAMES)
                return dict(sorted((entry.filename, entry.st_size or 0) for entry in entries))
            return {}

        return self.attempt(act, f"list {folder}")

    def terminate(self, pid: int, marker: str) -> None:
        """Send SIGINT to a process if its arguments contain `marker`.

        The node itself compares the arguments, because the pid may have been reused by now.
        """
        self.capture(("sh", "-c", TERMINATE, "sh", str(pid), marker.replace("\0", "\n")), seconds=RUN_SECONDS)

    def alive(self, pid: int, marker: str) -> bool:
        """Return whether a process is alive and its arguments contain `marker`.

        The marker rules out a later process that has got the same pid.
        """
        try:
            return marker.encode() in (self.read(f"/proc/{pid}/cmdline") or b"")
        except ConnectionLost:
            raise
        except ExecuteError:  # SFTP reports only `Failure` if the process ends during the read
            return False

    def capture(self, argv: tuple[str, ...], *, seconds: float, source: Path | None = None) -> CommandResult:
        """Run a program on the node, with a local file as its input, and return its exit code and output.

        Raises:
            ConnectionLost: if the connection is lost or the program does not respond within `seconds`.
            ExecuteError: if the program cannot be started or prints without end.
        """

        def act() -> CommandResult:
            with self.connection.transport.open_session() as channel:
                channel.exec_command(shell_command(argv))
                if source is not None:
                    send_file(channel, source)
                return program_output.read_output(channel, self.node, seconds)

        return self.attempt(act, f"run {program_name(argv)}")

    def relay(self, argv: tuple[str, ...], receive: Callable[[int, bytes], None], stop: threading.Event) -> int:
        """Run a program on the node and pass on its output, as program_output.relay() does for one of this machine.

        Raises:
            ConnectionLost: if the node cannot be reached, or its login shell takes too long.
            ExecuteError: if the login shell does not start the program, or this machine has no OpenSSH.
        """
        filters = {program_output.STDOUT: StartFilter(), program_output.STDERR: StartFilter()}

        def select(stream: int, part: bytes) -> None:
            receive(stream, filters[stream].output(part))

        check = partial(program_output.check_start_time, filters, self.node)
        code = program_output.relay(self.openssh_command(argv), select, stop, check)
        if code == OPENSSH_FAILED and not filters[program_output.STDOUT].started:
            raise self.program_failure(argv, code, filters[program_output.STDERR].dropped)
        program_output.check_started(filters, self.node)
        return code

    def run(self, argv: tuple[str, ...]) -> None:
        """Run a short program on the node.

        Raises:
            ConnectionLost: if it runs for longer than RUN_SECONDS.
            OSError: if it fails.
        """
        result = self.capture(argv, seconds=RUN_SECONDS)
        if result.code != 0:
            raise OSError(result.err.strip() or f"exit code {result.code}")


def send_file(channel: paramiko.Channel, source: Path) -> None:
    """Send a local file to a program, and close the program's input."""
    channel.settimeout(TRANSFER_SECONDS)
    with source.open("rb") as file:
        while block := file.read(program_output.CHUNK):
            channel.sendall(block)
    channel.shutdown_write()


def home_config() -> tuple[str, ...]:
    """Return the option for ~/.ssh/config if HOME is not the user's home folder, where alone OpenSSH looks for it."""
    home, config = Path(pwd.getpwuid(os.getuid()).pw_dir), Path.home() / ".ssh/config"
    return ("-F", str(config)) if Path.home() != home and config.exists() else ()


def trust_known_hosts_only(connection: Any) -> None:
    """Reject nodes and jump hosts whose keys are not in the known_hosts files.

    fabric would accept unknown host keys.
    """
    import paramiko

    for hop in connection_chain(connection):
        for key in known_keys(hop, host_key_name(hop)):
            hop.client.get_host_keys().add(known_host_name(hop.host, hop.port), key.get_name(), key)
        hop.client.set_missing_host_key_policy(paramiko.RejectPolicy())


def use_identity_agents(connection: Any) -> None:
    """Let paramiko use the agents that the ssh configuration names for a node and its jump hosts.

    By itself it uses that of SSH_AUTH_SOCK for all of them.
    """
    from paramiko import SSHException
    from paramiko.agent import Agent, AgentSSH

    for hop in connection_chain(connection):
        socket_path = hop.ssh_config.get("identityagent", DEFAULT_AGENT)
        if socket_path == DEFAULT_AGENT:
            continue
        agent: Any = Agent.__new__(Agent)  # its constructor would connect to that of SSH_AUTH_SOCK
        AgentSSH.__init__(agent)
        with contextlib.suppress(OSError, SSHException):  # `none`, or it does not run
            agent_socket = socket.socket(socket.AF_UNIX)
            agent_socket.connect(os.path.expanduser(os.path.expandvars(socket_path)))
            agent._connect(agent_socket)
        hop.client._agent = agent


def known_keys(connection: Any, name: str) -> list[paramiko.PKey]:
    """Return the keys of a name that are recorded and not revoked, without certificate authorities.

    paramiko verifies no certificates.
    """
    from paramiko.hostkeys import HostKeyEntry

    keys: list[paramiko.PKey] = []
    revoked: list[paramiko.PKey] = []
    for line in known_hosts_lines(connection, name):
        fields = line.split()
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        with contextlib.suppress(Exception):  # the line is damaged, for which paramiko raises errors of many types
            entry = HostKeyEntry.from_line(" ".join(fields))
            if entry and marker != "@cert-authority":
                (revoked if marker else keys).append(entry.key)
    if name.startswith("[") and not keys and not revoked:  # ssh then accepts the key of the host at any port
        return known_keys(connection, connection.host)
    return [key for key in keys if key not in revoked]


def known_hosts_lines(connection: Any, name: str) -> Iterator[str]:
    """Yield the lines for a name in the known_hosts files of a host; paramiko uses the last key of each type.

    ssh-keygen finds them as ssh does, also by patterns, which paramiko does not know.
    """
    system_files = split_paths(connection.ssh_config.get("globalknownhostsfile", GLOBAL_KNOWN_HOSTS))
    for file in (*system_files, *known_hosts_files(connection)):
        path = os.path.expanduser(file)
        command = ("ssh-keygen", "-q", "-F", name.lower(), "-f", path)
        if os.path.exists(path):
            with program_output.start_errors("ssh-keygen"):
                output = subprocess.run(command, capture_output=True, text=True, errors="replace").stdout
            yield from output.splitlines()


def host_key_name(connection: Any) -> str:
    """Return the name of a host in known_hosts files."""
    alias: str | None = connection.ssh_config.get("hostkeyalias")
    return alias or known_host_name(connection.host, connection.port)


def connection_chain(connection: Any) -> Iterator[Any]:
    """Yield a connection, and those to its jump hosts."""
    from fabric import Connection

    while isinstance(connection, Connection):
        yield connection
        connection = connection.gateway


def known_hosts_files(connection: Any) -> list[str]:
    """Return the known_hosts files of the user that the ssh configuration sets for a host."""
    return split_paths(connection.ssh_config.get("userknownhostsfile", "") or KNOWN_HOSTS)


def split_paths(value: str) -> list[str]:
    """Return the paths in a value of paramiko, which leaves out the quotes around a single path with spaces."""
    return [value] if os.path.isfile(os.path.expanduser(value)) else shlex.split(value)


def known_hosts_file(connection: Any) -> str:
    """Return the known_hosts file for the key of a host, quoted for a shell."""
    path = known_hosts_files(connection)[0]
    return path if path.startswith("~/") else shlex.quote(path)
