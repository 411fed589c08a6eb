"""This machine: files and processes, without SSH."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from orch_node import disk

from orchestrator.errors import ExecuteError
from orchestrator.files import make_user_folder, write_whole
from orchestrator.model.command import Command, CommandResult, program_name

CHUNK = 1 << 20
WRITE = "Look whether you may write there, and whether the disk has room: `df`."
LOGS = "The log files are in the run's folder, which `orch runs` tells."


def not_started(name: str, error: OSError) -> ExecuteError:
    return ExecuteError(
        f"{name} cannot be started: {error.strerror}.",
        hint=f"`command -v {name}` tells whether it is there, and may be run.",
    )


class Local:
    """Does a plan's steps on this machine."""

    def put(self, path: str, content: str) -> None:
        target = Path(path)
        try:
            make_user_folder(target.parent)
            write_whole(target, content)
        except OSError as error:
            raise ExecuteError(f"{disk.describe_error(path, error)}.", hint=WRITE) from None

    def send(self, source: str, path: str) -> None:
        self.put(path, Path(source).read_text())

    def chunks(self, path: str, offset: int) -> Iterator[bytes]:
        """The file's bytes from `offset` on. Raises ExecuteError."""
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                while chunk := file.read(CHUNK):
                    yield chunk
        except OSError as error:
            raise ExecuteError(f"{path} cannot be read: {error.strerror}.", hint=f"ls -l {path}") from None

    def start(self, command: Command, log: str) -> None:
        try:
            Path(log).touch(mode=0o600)
            with open(log, "ab") as output:
                subprocess.Popen(
                    command.argv,
                    env={**os.environ, **dict(command.env)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError as error:
            raise not_started(command.argv[0], error) from None

    def capture(self, argv: tuple[str, ...], *, seconds: float) -> CommandResult:
        """Run a program to its end. Raises ExecuteError."""
        try:
            done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise ExecuteError(
                f"{program_name(argv)} has not answered for {seconds:.0f} s.",
                hint="`top` and `df` tell whether this machine is too busy, or a disk hangs.",
            ) from None
        except OSError as error:
            raise not_started(argv[0], error) from None
        return CommandResult(
            code=done.returncode, out=done.stdout.decode(errors="replace"), err=done.stderr.decode(errors="replace")
        )

    def feed(self, argv: tuple[str, ...], content: bytes) -> None:
        """Run a program that reads this to its end. Raises ExecuteError if it fails."""
        try:
            done = subprocess.run(argv, input=content, capture_output=True)
        except OSError as error:
            raise not_started(argv[0], error) from None
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip()
            raise ExecuteError(f"{program_name(argv)}: {words or f'exit code {done.returncode}'}", hint=WRITE)

    def stream(self, argv: tuple[str, ...]) -> Iterator[str]:
        """The lines of a program as they come. Raises ExecuteError if it fails."""
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True
        ) as process:  # in a session of its own: Ctrl-C on the terminal is for orch
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    yield line.decode(errors="replace")
                if process.wait() != 0:
                    raise ExecuteError(f"{program_name(argv)}: exit code {process.returncode}.", hint=LOGS)
            finally:
                process.terminate()

    def close(self) -> None:
        """Nothing is open."""
