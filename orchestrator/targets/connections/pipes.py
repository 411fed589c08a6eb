"""Run a program whose input and output are pipes: on this machine, or through OpenSSH on another one."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from typing import BinaryIO

from orchestrator.errors import ExecuteError
from orchestrator.model.printable import one_line

MAX_ERROR_BYTES = 1 << 16
PIPE_BYTES = 1 << 20  # Linux's limit for users; larger pipes need fewer switches between processes


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
