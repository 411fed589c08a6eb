"""This machine: files and processes, without SSH."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from orchestrator.command import Command
from orchestrator.errors import ExecuteError

CHUNK = 1 << 20


class Local:
    """Does a plan's steps on this machine."""

    def put(self, path: str, content: str) -> None:
        target = Path(path)
        staging = target.with_name(target.name + ".tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            staging.write_text(content)
            staging.replace(target)
        except OSError as error:
            raise ExecuteError(f"{path} cannot be written: {error.strerror}.") from None

    def send(self, source: str, path: str) -> None:
        self.put(path, Path(source).read_text())

    def ask(self, argv: tuple[str, ...]) -> str:
        """What a program prints. Raises ExecuteError if it fails."""
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise ExecuteError(f"{argv[0]}: {done.stderr.strip()}.")
        return done.stdout

    def chunks(self, path: str, offset: int) -> Iterator[bytes]:
        """The file's bytes from `offset` on. Raises ExecuteError."""
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                while chunk := file.read(CHUNK):
                    yield chunk
        except OSError as error:
            raise ExecuteError(f"{path} cannot be read: {error.strerror}.") from None

    def start(self, command: Command, log: str) -> None:
        try:
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
            raise ExecuteError(f"{command.argv[0]} cannot be started: {error.strerror}.") from None
