"""Run the launcher of an attempt, such as mpiexec.hydra, in its own session."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from orch_node.atomic_write import private
from orch_node.line_pipes import MAX_LAUNCHER_LINE_BYTES, Pipes
from orch_node.reach import JOINING

PR_SET_PDEATHSIG = 1  # linux/prctl.h
# A grandchild may hold the pipe open for longer than the launcher lives.
DRAIN_SECONDS = 1.0
# Without both variables, Open MPI refuses to run as root.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Launcher:
    """A running launcher."""

    def __init__(
        self,
        argv: list[str],
        environment: dict[str, str],
        log: Path,
        pipes: Pipes,
        handle_line: Callable[[bytes], None],
    ) -> None:
        """Start the launcher.

        Raises:
            OSError: if the program cannot be started.
        """
        self.pipes = pipes
        self.ended: float | None = None
        with open(log, "ab", opener=private) as log_file:
            self.process = subprocess.Popen(
                [*shlex.split(os.environ.get(JOINING, "")), *argv],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log_file,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        assert self.process.stdout is not None
        self.stdout = self.process.stdout.fileno()
        pipes.add(self.stdout, handle_line, MAX_LAUNCHER_LINE_BYTES)

    def running(self) -> bool:
        """Return whether the launcher runs, or its last line has not been read yet."""
        if self.process.poll() is None:
            return True
        self.ended = self.ended or time.monotonic()
        return self.pipes.open(self.stdout) and time.monotonic() - self.ended < DRAIN_SECONDS

    def kill(self) -> None:
        """Kill the launcher if it still runs; agents end the processes that it leaves.

        mpiexec.hydra ignores SIGTERM for a quarter of an hour after a node is lost.
        """
        if self.process.poll() is not None:
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self.process.wait()

    @property
    def signal(self) -> str:
        """Return the name of the signal that has ended the launcher, or ''."""
        code = self.process.returncode
        return signal.Signals(-code).name if code is not None and code < 0 else ""

    def close(self) -> int:
        """Wait for the end; return the exit code as a shell does."""
        self.pipes.drop(self.stdout)
        assert self.process.stdout is not None
        self.process.stdout.close()
        code = self.process.wait()
        return code if code >= 0 else 128 - code


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def launcher_environment(folder: str, run_dir: Path, attempt: int) -> dict[str, str]:
    """Return the launcher's environment.

    Args:
        folder: comes first in PATH, where hydra looks for its proxy.
        run_dir: the run's folder.
        attempt: counts from 1.
    """
    return {
        **os.environ,
        **(AS_ROOT if os.getuid() == 0 else {}),
        "PATH": f"{folder}:{os.environ.get('PATH', '')}",
        "ORCH_RUN_DIR": str(run_dir),
        "ORCH_ATTEMPT": str(attempt),
    }
