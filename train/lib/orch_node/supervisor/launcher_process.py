"""The launcher of one attempt: mpiexec.hydra in a session of its own, its lines, and its end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from orch_node.line_pipes import LONGEST_OF_LAUNCHER, Pipes
from orch_node.whole_files import private

PR_SET_PDEATHSIG = 1  # linux/prctl.h
# A grandchild may hold the pipe open for longer than the launcher lives.
DRAIN_SECONDS = 1.0
# Open MPI refuses to run as root without both words: its --allow-run-as-root.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Launcher:
    """Raises OSError if the program cannot be started."""

    def __init__(
        self, argv: list[str], environment: dict[str, str], log: Path, pipes: Pipes, take: Callable[[bytes], None]
    ) -> None:
        self.pipes = pipes
        self.ended: float | None = None
        with open(log, "ab", opener=private) as words:
            self.process = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=words,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        assert self.process.stdout is not None
        self.stdout = self.process.stdout.fileno()
        pipes.add(self.stdout, take, LONGEST_OF_LAUNCHER)

    def running(self) -> bool:
        """Until it has ended and its last line has been read."""
        if self.process.poll() is None:
            return True
        self.ended = self.ended or time.monotonic()
        return self.pipes.open(self.stdout) and time.monotonic() - self.ended < DRAIN_SECONDS

    def kill(self) -> None:
        """SIGKILL: with a node lost, mpiexec.hydra ignores SIGTERM for a quarter of an hour. One
        that has ended is left alone: its number may be another's. Agents end what it has left."""
        if self.process.poll() is not None:
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self.process.wait()

    def close(self) -> int:
        """-> its exit code, as a shell gives it."""
        self.pipes.drop(self.stdout)
        assert self.process.stdout is not None
        self.process.stdout.close()
        code = self.process.wait()
        return code if code >= 0 else 128 - code


def die_with_parent() -> None:
    """Without its supervisor nobody would watch the ranks."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def launcher_environment(folder: str, run_dir: Path, attempt: int) -> dict[str, str]:
    """`folder`: the launcher's own. hydra looks for its proxy in PATH, not beside itself."""
    return {
        **os.environ,
        **(AS_ROOT if os.getuid() == 0 else {}),
        "PATH": f"{folder}:{os.environ.get('PATH', '')}",
        "ORCH_RUN_DIR": str(run_dir),
        "ORCH_ATTEMPT": str(attempt),
    }
