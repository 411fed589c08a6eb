"""Run programs and write files on this machine, without SSH."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from orch_node import disk

from orchestrator.errors import ExecuteError
from orchestrator.files import make_user_folder, write_whole
from orchestrator.model.printable import Command, CommandResult, program_name
from orchestrator.targets.connections.program_output import PipedProgram, last_line, piped_program, relay, start_errors

WRITE_HINT = "Check whether you may write there, and whether the disk has free space: `df`."


def program_failure(argv: tuple[str, ...], code: int, output: str) -> ExecuteError:
    """Return the error for a program that has ended too early."""
    reason = last_line(output) or f"exit code {code}"
    return ExecuteError(f"{program_name(argv)}: {reason}.", hint=WRITE_HINT)


class Local:
    """The machine that orch runs on, with the methods of a node that is reached through SSH."""

    def put(self, path: str, content: str | bytes) -> None:
        """Write a file, whole or not at all; raise ExecuteError if that fails."""
        target = Path(path)
        try:
            make_user_folder(target.parent)
            write_whole(target, content)
        except OSError as error:
            raise ExecuteError(f"{disk.describe_error(path, error)}.", hint=WRITE_HINT) from None

    def open_program(self, argv: tuple[str, ...]) -> AbstractContextManager[PipedProgram]:
        """Start a program with pipes; raise ExecuteError if it cannot be started."""
        return piped_program(argv, partial(program_failure, argv))

    def start(self, command: Command, log: str) -> None:
        """Start a program that continues after this one; raise ExecuteError if it cannot be started."""
        argv, env, null = command.argv, {**os.environ, **command.env}, subprocess.DEVNULL
        with start_errors(argv[0]):
            Path(log).touch(mode=0o600)
            with open(log, "ab") as output:
                subprocess.Popen(argv, env=env, stdin=null, stdout=output, stderr=output, start_new_session=True)

    def capture(self, argv: tuple[str, ...], *, seconds: float, source: Path | None = None) -> CommandResult:
        """Run a program, which Ctrl-C on the terminal does not reach, and return its exit code and output.

        Raises:
            ExecuteError: if it cannot be started or runs for longer than `seconds`.
            OSError: if `source`, the file that it reads as its input, cannot be read.
        """
        try:
            with (source or Path(os.devnull)).open("rb") as file, start_errors(argv[0]):
                done = subprocess.run(argv, stdin=file, capture_output=True, timeout=seconds, start_new_session=True)
        except subprocess.TimeoutExpired:
            raise ExecuteError.about("slow-program", program=program_name(argv), seconds=seconds) from None
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        return CommandResult(code=done.returncode, out=out, err=err)

    def relay(self, argv: tuple[str, ...], receive: Callable[[int, bytes], None], stop: threading.Event) -> int:
        """Run a program as relay() does."""
        return relay(argv, receive, stop)

    def close(self) -> None:
        """Do nothing; the method exists for the interface of a connection."""
