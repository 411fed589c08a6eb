"""Start real ranks by hydra, by torchrun or as bare processes, with time limits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.warm import BINDINGS_SERVER

PORTS = 4  # consecutive ports, because a program may serve several stores
PROGRAMS = Path(__file__).parent / "programs"
BIN = Path(sys.executable).parent
SET_BY_LAUNCHERS = ("PMI_", "PMIX_", "MPI_", "I_MPI_", "HYDI_", "HYDRA_", "TORCHELASTIC_", "CCL_", "FI_")
SET_FOR_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    code: int  # of the first process that failed, or 0
    text: str
    seconds: float
    codes: tuple[int, ...] = ()  # of all processes that the test started


def clean_environment(extra: dict[str, str]) -> dict[str, str]:
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(SET_BY_LAUNCHERS) and name not in SET_FOR_RANKS
    }
    env |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port(PORTS)),
        "OMP_NUM_THREADS": "1",
        "ORCH_CCL_SHARED_MEMORY": "0",  # use oneCCL, unless a test requests shared memory
    }
    return env | {"PATH": f"{BIN}{os.pathsep}{env['PATH']}", "PYTHONUNBUFFERED": "1"} | extra


def commands(
    launcher: str, ranks: int, program: list[str], env: dict[str, str], warm: bool = False
) -> list[tuple[list[str], dict[str, str]]]:
    """Return the command and the environment of each process that the test itself starts."""
    command = [*(BINDINGS_SERVER.client_command() if warm else [sys.executable]), *program]
    if launcher == "mpi":
        return [([str(BIN / "mpiexec.hydra"), "-n", str(ranks), *command], env)]
    if launcher == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        return [([*torchrun, "--master-port", env["MASTER_PORT"], "--no-python", *command], env)]
    local = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return [(command, env | local | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]


def start(command: list[str], log: Path, **options: object) -> subprocess.Popen:
    """Start a process in a new session and append its output to a log."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, **options
        )


def wait_all(processes: list[subprocess.Popen], timeout: float) -> str:
    """Wait for all processes; after the timeout kill them and return an error message."""
    deadline = time.monotonic() + timeout
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            for started in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(started.pid, signal.SIGKILL)
                started.wait()
            return f"still running after {timeout} s"
    return ""


@pytest.fixture
def launch(tmp_path):
    """Return launch("program.py", *args, ranks=2, launcher="mpi"|"torchrun"|"bare") -> Outcome.

    With `warm` the ranks are forked from a process that has imported torch; see tests/support/warm.py.
    """

    def run(
        program: str,
        *args: str,
        ranks: int = 2,
        launcher: str = "mpi",
        timeout: float = 60,
        env: dict[str, str] | None = None,
        warm: bool = True,
    ) -> Outcome:
        full = clean_environment(env or {})
        start_time = time.monotonic()
        processes, logs = [], []
        for command, variables in commands(launcher, ranks, [str(PROGRAMS / program), *args], full, warm):
            logs.append(tmp_path / f"{Path(program).stem}-{len(list(tmp_path.iterdir()))}.log")
            processes.append(start(command, logs[-1], env=variables, cwd=tmp_path))
        error = wait_all(processes, timeout)
        text = "".join(log.read_text(errors="replace") for log in logs)
        assert not error, f"{program} {' '.join(args)}: {error}\n{text}"
        codes = tuple(process.returncode for process in processes)
        first_failure = next((code for code in codes if code), 0)
        return Outcome(code=first_failure, text=text, seconds=time.monotonic() - start_time, codes=codes)

    return run


@pytest.fixture
def run_ranks(launch):
    """Return a function like launch() that checks that all ranks succeed and print `expected`."""

    def run(program: str, *args: str, expected: str = "fine", count: int = 0, ranks: int = 2, **options) -> Outcome:
        outcome = launch(program, *args, ranks=ranks, **options)
        assert outcome.code == 0, outcome.text
        assert outcome.text.count(expected) == (count or ranks), outcome.text
        return outcome

    return run
