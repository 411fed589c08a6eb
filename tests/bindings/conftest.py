"""Starts real ranks, through hydra, torchrun or bare processes, and never waits for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.warm import BINDINGS

PORTS = 4  # in a row: a program may serve one store after another
PROGRAMS = Path(__file__).parent / "programs"
BIN = Path(sys.executable).parent
SET_BY_LAUNCHERS = ("PMI_", "PMIX_", "MPI_", "I_MPI_", "HYDI_", "HYDRA_", "TORCHELASTIC_", "CCL_", "FI_")
SET_FOR_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    code: int
    text: str
    seconds: float
    codes: tuple[int, ...] = ()


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
        "ORCH_CCL_SHARED_MEMORY": "0",  # through oneCCL, unless a test asks for shared memory
    }
    return env | {"PATH": f"{BIN}{os.pathsep}{env['PATH']}", "PYTHONUNBUFFERED": "1"} | extra


def commands(
    by: str, ranks: int, program: list[str], env: dict[str, str], warm: bool = False
) -> list[tuple[list[str], dict[str, str]]]:
    """One (command, environment) per process that the test itself starts."""
    asked = [*(BINDINGS.command() if warm else [sys.executable]), *program]
    if by == "mpi":
        return [([str(BIN / "mpiexec.hydra"), "-n", str(ranks), *asked], env)]
    if by == "torchrun":
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        return [([*launcher, "--master-port", env["MASTER_PORT"], "--no-python", *asked], env)]
    local = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return [(asked, env | local | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]


def wait_all(processes: list[subprocess.Popen], timeout: float) -> str:
    until = time.monotonic() + timeout
    late = False
    for process in processes:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
            break
    for process in processes:
        if process.poll() is None or late:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()
    return f"still running after {timeout} s" if late else ""


@pytest.fixture
def launch(tmp_path):
    """launch("program.py", *args, ranks=2, by="mpi"|"torchrun"|"bare") -> Outcome.

    `warm`: see tests/warm.py; else each rank is a Python of its own."""

    def run(
        program: str,
        *args: str,
        ranks: int = 2,
        by: str = "mpi",
        timeout: float = 60,
        env: dict[str, str] | None = None,
        warm: bool = True,
    ) -> Outcome:
        full = clean_environment(env or {})
        asked = commands(by, ranks, [str(PROGRAMS / program), *args], full, warm)
        begun = time.monotonic()
        started = []
        logs = []
        for number, (command, variables) in enumerate(asked):
            logs.append(tmp_path / f"{program}-{len(list(tmp_path.iterdir()))}-{number}.log")
            with logs[-1].open("wb") as log:
                started.append(
                    subprocess.Popen(
                        command,
                        env=variables,
                        cwd=tmp_path,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        late = wait_all(started, timeout)
        text = "".join(log.read_text(errors="replace") for log in logs)
        assert not late, f"{program} {' '.join(args)}: {late}\n{text}"
        codes = tuple(process.returncode for process in started)
        first_failure = next((code for code in codes if code), 0)
        return Outcome(code=first_failure, text=text, seconds=time.monotonic() - begun, codes=codes)

    return run
