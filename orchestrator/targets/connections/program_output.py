"""Read the output of a program, through a channel of paramiko within limits of size and time, or through pipes."""

from __future__ import annotations

import contextlib
import fcntl
import selectors
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from orch_node.reach import StartFilter

from orchestrator.errors import ConnectionLost, ExecuteError
from orchestrator.model.printable import LOGIN_SCRIPT_HINT, CommandResult, one_line

if TYPE_CHECKING:
    import paramiko


CHUNK = 1 << 20
MAX_OUTPUT_BYTES = 1 << 28  # enough to list a million files
LOGIN_SHELL_HINT = "`ssh NODE true` must succeed: look at the user's shell (getent passwd) and its start-up files."
LATE_SECONDS = 1.0  # silence after which the output of an ended program counts as complete
POLL_SECONDS = 0.005
STOP_POLL_SECONDS = 0.1
STDOUT, STDERR = 1, 2
NO_STATUS = -1  # paramiko's exit code of a channel that ended without one
MAX_ERROR_BYTES = 1 << 16
PIPE_BYTES = 1 << 20  # Linux's limit for users; larger pipes need fewer switches between processes


def read_output(channel: paramiko.Channel, node: str, seconds: float) -> CommandResult:
    """Return everything that a program prints until it ends.

    Raises:
        ConnectionLost: if the connection is lost, or the program neither prints nor ends within `seconds`.
        ExecuteError: if the program prints too much or is still printing after `seconds`.
    """
    output = {STDOUT: bytearray(), STDERR: bytearray()}
    start_time = time.monotonic()

    def wait() -> None:
        time.sleep(POLL_SECONDS)
        if time.monotonic() - start_time > seconds:
            raise ConnectionLost(f"{node}: no answer for {seconds:.0f} s.")

    for descriptor, part in output_parts(channel, node, wait):
        output[descriptor] += part
        if sum(map(len, output.values())) > MAX_OUTPUT_BYTES or time.monotonic() - start_time > seconds:
            raise ExecuteError(
                f"{node}: the output of the program has no end, and was cut off.", hint=LOGIN_SCRIPT_HINT
            )
    code = exit_code(channel, node)
    out, err = (text.decode(errors="replace") for text in output.values())
    return CommandResult(code=code, out=out, err=err)


def relay_output(
    channel: paramiko.Channel, node: str, receive: Callable[[int, bytes], None], stop: threading.Event
) -> int:
    """Pass on the output of a program as it arrives, and return the exit code.

    Args:
        channel: the program.
        node: the name of its node.
        receive: called with STDOUT or STDERR, and a part of the output.
        stop: ends the input of the program when it is set.

    Raises:
        ConnectionLost: if the connection ends before the program.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)

        def wait() -> None:
            selector.select(STOP_POLL_SECONDS)
            if stop.is_set():
                channel.shutdown_write()

        for descriptor, part in output_parts(channel, node, wait):
            receive(descriptor, part)
    return exit_code(channel, node)


def output_parts(channel: paramiko.Channel, node: str, wait: Callable[[], None]) -> Iterator[tuple[int, bytes]]:
    """Yield the output of a program until it ends, each part with its descriptor; call `wait` while there is none.

    What the login shell prints before it is yielded as empty parts.

    Raises:
        ExecuteError: if the login shell has not started the program.
    """
    filters = {STDOUT: StartFilter(), STDERR: StartFilter()}
    last_output = time.monotonic()
    while True:
        if channel.recv_ready():
            yield STDOUT, filters[STDOUT].output(channel.recv(CHUNK))
        elif channel.recv_stderr_ready():
            yield STDERR, filters[STDERR].output(channel.recv_stderr(CHUNK))
        elif has_ended(channel, time.monotonic() - last_output):
            break
        else:
            wait()
            continue
        last_output = time.monotonic()
    check_started(filters[STDOUT], filters[STDERR].dropped, node)


def read_errors(channel: paramiko.Channel, stdout: StartFilter, node: str) -> str:
    """Return what a program whose output has been read has printed to its standard error.

    Raises:
        ExecuteError: if the login shell has not started the program.
    """
    stderr = StartFilter()
    errors = stderr.output(channel.recv_stderr(CHUNK) if channel.recv_stderr_ready() else b"")
    check_started(stdout, stderr.dropped, node)
    return errors.decode(errors="replace").strip()


def check_started(stdout: StartFilter, stderr: str, node: str) -> None:
    """Raise ExecuteError if the login shell has ended without a start of the program.

    Args:
        stdout: the filter of the program's output, which has ended.
        stderr: what has been dropped of its standard error.
        node: the name of its node.
    """
    if not stdout.started:
        message = one_line(stderr or stdout.dropped)[:200]
        raise ExecuteError(
            f"{node}: its login shell does not run commands{f': {message}' if message else ''}.", hint=LOGIN_SHELL_HINT
        )


def exit_code(channel: paramiko.Channel, node: str) -> int:
    """Return the exit code of an ended program; raise ConnectionLost if the connection has ended before it."""
    code = channel.recv_exit_status()
    if code == NO_STATUS:
        raise ConnectionLost(f"{node}: the connection was lost.")
    return code


def has_ended(channel: paramiko.Channel, quiet_seconds: float) -> bool:
    """Return whether a program has ended and its output has been read.

    Processes that the program has started may hold its output open; they are not waited for.
    """
    output_is_over = channel.closed or channel.eof_received or quiet_seconds > LATE_SECONDS
    return bool(output_is_over) and channel.exit_status_ready()


class PipedProgram:
    """A running program.

    Attributes:
        output: its standard output.
    """

    def __init__(self, process: subprocess.Popen[bytes], errors: BinaryIO, explain: Callable[[int, str], ExecuteError]):
        """Wrap a process.

        Args:
            process: the process, with pipes for its input and its output.
            errors: the file that it writes its standard error to.
            explain: returns the error for an exit code and the text of its standard error.
        """
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.input = process.stdin
        self.output: BinaryIO = process.stdout  # type: ignore[assignment]
        self.errors = errors
        self.explain = explain

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
        OSError: if it cannot be started.
    """
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, start_new_session=True)
        program = PipedProgram(process, errors, explain)
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


def last_line(output: str) -> str:
    """Return the last line of a text, where programs name their errors."""
    return one_line(output.strip().rpartition("\n")[2])[:500]
