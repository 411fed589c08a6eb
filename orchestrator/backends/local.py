"""This machine: files and processes, without SSH."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from orchestrator.command import Command
from orchestrator.errors import ExecuteError


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
