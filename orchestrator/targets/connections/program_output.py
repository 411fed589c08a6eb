"""Read the output of a program, through a channel of paramiko within limits of size and time, or through pipes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, BinaryIO, TypeVar

from orch_node.protocol import values
from orch_node.reach import StartFilter

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.printable import LOGIN_SCRIPT_HINT, CommandResult, one_line

if TYPE_CHECKING:
    import paramiko


Value = TypeVar("Value")
CHUNK = 1 << 20
MAX_OUTPUT_BYTES = 1 << 28  # enough to list a million files
START_SECONDS = 60.0  # time limit for the start-up files of a login shell
LATE_SECONDS = 1.0  # silence after which the output of an ended program counts as complete
POLL_SECONDS = 0.005
STOP_POLL_SECONDS = 0.1
UPDATE_HINT = "After an update of orch, run `orch provision` again."
STDOUT, STDERR = 1, 2
NO_STATUS = -1  # paramiko's exit code of a channel that ended without one
MAX_ERROR_BYTES = 1 << 16
PIPE_BYTES = 1 << 20  # Linux's limit for users; larger pipes need fewer switches between processes


def read_output(channel: paramiko.Channel, node: str, seconds: float) -> CommandResult:
    """Return everything that a program prints until it ends, without what the login shell prints before it.

    Raises:
        ConnectionLost: if the connection is lost, the program neither prints nor ends within `seconds`, or the login
            shell has not started it within START_SECONDS.
        ExecuteError: if the login shell has not started the program, or it prints too much or is still printing after
            `seconds`.
    """
    filters = {STDOUT: StartFilter(), STDERR: StartFilter()}
    output = {STDOUT: bytearray(), STDERR: bytearray()}
    last_output = start_time = time.monotonic()
    while True:
        now = time.monotonic()
        if channel.recv_ready():
            output[STDOUT] += filters[STDOUT].output(channel.recv(CHUNK))
        elif channel.recv_stderr_ready():
            output[STDERR] += filters[STDERR].output(channel.recv_stderr(CHUNK))
        elif has_ended(channel, now - last_output):
            break
        elif now - start_time > seconds:
            raise ConnectionLost(f"{node}: no answer for {seconds:.0f} s.")
        else:
            check_start_time(filters, node, now - start_time)
            time.sleep(POLL_SECONDS)
            continue
        last_output = now
        if sum(map(len, output.values())) > MAX_OUTPUT_BYTES or now - start_time > seconds:
            raise ExecuteError.about("endless-output", node=node, advice=LOGIN_SCRIPT_HINT)
    check_started(filters, node)
    code = channel.recv_exit_status()
    if code == NO_STATUS:
        raise ConnectionLost(f"{node}: the connection was lost.")
    out, err = (text.decode(errors="replace") for text in output.values())
    return CommandResult(code=code, out=out, err=err)


@contextlib.contextmanager
def start_errors(program: str) -> Iterator[None]:
    """Raise ExecuteError if a program cannot be started within the context."""
    try:
        yield
    except OSError as error:
        raise ExecuteError.about("program-start", program=program, error=error) from None


def relay(
    command: tuple[str, ...],
    receive: Callable[[int, bytes], None],
    stop: threading.Event,
    check: Callable[[float], None] = lambda _: None,
) -> int:
    """Run a program of this machine, pass on its output as it arrives, and return its exit code as a shell does.

    Args:
        command: the program and its arguments.
        receive: called with STDOUT or STDERR, and a part of the output.
        stop: ends the input of the program when it is set.
        check: called every STOP_POLL_SECONDS with the seconds since the start; its error ends the program.

    Raises:
        ExecuteError: if it cannot be started.
    """
    start_time = time.monotonic()
    pipe = subprocess.PIPE
    with start_errors(command[0]):
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    with process, selectors.DefaultSelector() as selector:
        for stream, descriptor in ((process.stdout, STDOUT), (process.stderr, STDERR)):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, descriptor)
        while selector.get_map():
            has_ended = process.poll() is not None
            ready = selector.select(STOP_POLL_SECONDS)
            for key, _ in ready:
                if part := os.read(key.fd, CHUNK):
                    receive(key.data, part)
                else:
                    selector.unregister(key.fileobj)
            if has_ended and not ready:  # processes in the background hold the output open
                break
            if stop.is_set() and process.stdin is not None:
                process.stdin.close()
            try:
                check(time.monotonic() - start_time)
            except ExecuteError:
                process.kill()
                raise
        code = process.wait()
    return code if code >= 0 else 128 - code


def check_started(filters: Mapping[int, StartFilter], node: str) -> None:
    """Raise ExecuteError if the login shell has ended without a start of the program.

    Args:
        filters: the filters of the program's output, which has ended.
        node: the name of its node.
    """
    if not filters[STDOUT].started:
        message = one_line(filters[STDERR].dropped or filters[STDOUT].dropped)[:200]
        raise ExecuteError.about("login-shell", node=node, reason=f": {message}" if message else "")


def check_start_time(filters: Mapping[int, StartFilter], node: str, seconds: float) -> None:
    """Raise ConnectionLost if the login shell has not started the program, for which it has had these seconds."""
    if seconds > START_SECONDS and not filters[STDOUT].started:
        raise ConnectionLost.about("slow-login-shell", node=node, seconds=f"{START_SECONDS:.0f}")


def has_ended(channel: paramiko.Channel, quiet_seconds: float) -> bool:
    """Return whether a program has ended and its output has been read.

    Processes that the program has started may hold its output open; they are not waited for.
    """
    output_is_over = channel.closed or channel.eof_received or quiet_seconds > LATE_SECONDS
    return bool(output_is_over) and channel.exit_status_ready()


@dataclass(slots=True)
class PipedProgram:
    """A running program.

    Attributes:
        process: its process.
        input: its standard input.
        output: its standard output.
        errors: the file that it writes its standard error to.
        explain: returns the error for an exit code and the text of its standard error.
    """

    process: subprocess.Popen[bytes]
    input: IO[bytes]
    output: BinaryIO
    errors: BinaryIO
    explain: Callable[[int, str], ExecuteError]

    def send(self, data: bytes) -> None:
        """Write to its standard input; do nothing if it has ended."""
        with contextlib.suppress(BrokenPipeError):
            self.input.write(data)
            self.input.flush()

    def failure(self) -> ExecuteError:
        """Return why its output has ended too early."""
        with contextlib.suppress(BrokenPipeError):
            self.input.close()
        code = self.process.wait()
        self.errors.seek(0)
        return self.explain(code, self.errors.read(MAX_ERROR_BYTES).decode(errors="replace").strip())


@contextlib.contextmanager
def piped_program(command: tuple[str, ...], explain: Callable[[int, str], ExecuteError]) -> Iterator[PipedProgram]:
    """Start a program, and end it with the context.

    It has its own session, so that Ctrl-C on the terminal reaches only orch.

    Raises:
        ExecuteError: if it cannot be started.
    """
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as errors:
        with start_errors(command[0]):
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, start_new_session=True)
        assert process.stdin is not None
        output: BinaryIO = process.stdout  # type: ignore[assignment]
        program = PipedProgram(process, process.stdin, output, errors, explain)
        with contextlib.suppress(OSError):  # Linux limits the pipes of a user: 64 MiB for all
            fcntl.fcntl(program.output, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        try:
            yield program
        finally:
            process.kill()
            process.wait()
            for stream in (program.input, program.output):
                with contextlib.suppress(OSError):
                    stream.close()


def read_response(result: CommandResult, kind: type[Value]) -> Value:
    """Return the JSON object that one of the node's programs has printed.

    Raises:
        ExecuteError: if the program has failed, or has printed something else.
    """
    if result.code != 0:
        raise ExecuteError(last_line(result.err) or f"exit code {result.code}", hint=UPDATE_HINT)
    try:
        content = values.check(values.loads(result.out, "its response"), "its response", dict)
        values.check_schema(content, "its response")
        return values.read(kind, content, "its response", ignore_unknown=True)
    except values.ProtocolError as error:
        raise ExecuteError(str(error), hint=LOGIN_SCRIPT_HINT) from None


def last_line(output: str) -> str:
    """Return the last line of a text, where programs name their errors."""
    return one_line(output.strip().rpartition("\n")[2])[:500]
