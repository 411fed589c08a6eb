"""Check that launchers and backends can be combined freely.

One run of tests/scripts/curve.py is one cell. The test compares its loss curve with that of a single process, the
report of its failure with a fixed one, its environment with that of the other cells, and the addresses at which it
listens with the planned ones. CI runs some of the cells (see `cells`), ORCH_MATRIX_ALL=1 all.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from orch_node.streams import without_marks

SCRIPT = Path(__file__).parents[1] / "scripts" / "curve.py"

# In fp32, the mean of the means of two halves of the data differs from the mean of all data by rounding.
TOLERANCE = 1e-5
STARTERS: dict[str, tuple[str, ...]] = {
    "mpirun, Intel MPI": ("--mpi", "intel"),
    "mpirun, MPICH": ("--mpi", "mpich"),
    "mpirun, Open MPI": ("--mpi", "openmpi"),
    "torchrun": ("--launcher", "torchrun"),
    "accelerate, Intel MPI": ("--launcher", "accelerate", "--mpi", "intel"),
    "accelerate, MPICH": ("--launcher", "accelerate", "--mpi", "mpich"),
    "accelerate, Open MPI": ("--launcher", "accelerate", "--mpi", "openmpi"),
    "mpirun starts accelerate": ("--launcher", "mpirun-accelerate"),
}
BACKENDS = ("ccl", "gloo")
CELLS = [(starter, backend) for starter in STARTERS for backend in BACKENDS]
ON_ONE_NODE = [("mpirun, MPICH", "ccl"), ("torchrun", "ccl"), ("accelerate, Open MPI", "gloo")]
BETWEEN_NODES = [
    ("mpirun, Intel MPI", "ccl"),
    ("mpirun, Open MPI", "ccl"),
    ("torchrun", "gloo"),
    ("accelerate, MPICH", "gloo"),
    ("mpirun starts accelerate", "gloo"),
]
# DDP behaves the same with all launchers and takes half of the time of a run, so the script averages gradients itself
# with all but the most frequent ones, unless ORCH_MATRIX_ALL is set.
WITH_DDP = ("mpirun, Intel MPI", "torchrun")
DAEMONS = ("mpiexec", "mpirun", "hydra", "prte")
# Variables that are equal with all launchers, and those that depend on the transport of oneCCL.
SHARED = """
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR OMP_NUM_THREADS PYTHONUNBUFFERED
    LD_PRELOAD KMP_ CCL_ GLOO_ TP_ FI_TCP GROUP_ NODE_RANK ROLE_ TORCHELASTIC_RESTART_COUNT TORCH_NCCL_
"""
TRANSPORT = """
    CCL_ATL_TRANSPORT CCL_PROCESS_LAUNCHER CCL_LOCAL_RANK CCL_LOCAL_SIZE CCL_ALLREDUCE CCL_ALLTOALLV
    CCL_RS_CHUNK_COUNT CCL_ATL_MPI_BF16 CCL_ATL_OFI_MAX_RETRY_COUNT
"""


@dataclass
class Cell:
    """The result of a run of the script, and the output of its ranks."""

    code: int
    report: dict[str, Any]
    logs: dict[int, str]

    @classmethod
    def from_report(cls, code: int, report: dict[str, Any]) -> Cell:
        """Return the cell of a run with this exit code and this report of `orch train`."""
        logs = Path(report["folder"], "ranks").glob("rank-*.log")
        texts = {int(path.stem[5:]): without_marks(path.read_text(errors="replace")) for path in logs}
        return cls(code=code, report=report, logs=texts)

    def printed(self, key: str, rank: int) -> Any:
        """Return what a rank printed after a keyword."""
        lines = self.logs[rank].splitlines()
        values = [line[len(key) + 1 :] for line in lines if line.startswith(f"{key} ")]
        assert values, f"rank {rank} printed no {key}:\n{self.logs[rank]}"
        return values[0]


def cells(nodes: int) -> list[tuple[str, str]]:
    """Return the pairs of starter and backend to test with this number of nodes.

    With ORCH_MATRIX_ALL these are all pairs. Otherwise each starter runs once, on one node or on two, and torchrun on
    both; accelerate starts Intel MPI as it starts MPICH. Two nodes run those that differ in how they reach another
    node: MPICH starts its daemons as Intel MPI does, and accelerate starts the launcher of each MPI in the same way.
    """
    if "ORCH_MATRIX_ALL" in os.environ:
        return CELLS
    return BETWEEN_NODES if nodes > 1 else ON_ONE_NODE


Start = Callable[..., Cell]
FIRST_ENVIRONMENTS: dict[tuple[str, int, int], dict[str, str]] = {}


@functools.cache
def single_process_curve() -> list[float]:
    """Return the curve of a single new process, which is independent of other tests."""
    program = "import json, curve; print(json.dumps(curve.curve(0, 1)))"
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=SCRIPT.parent, capture_output=True, text=True, check=True, timeout=120
    )
    return list(json.loads(process.stdout))


def check(start: Start, starter: str, backend: str, *, planned: tuple[str, ...]) -> None:
    """Check one cell.

    Args:
        start: runs orch train with these arguments on as many nodes as there are planned addresses.
        starter: key of STARTERS.
        backend: name of the backend.
        planned: address of each node.
    """
    nodes = len(planned)
    by_hand = () if starter in WITH_DDP or "ORCH_MATRIX_ALL" in os.environ else ("--by-hand",)
    cell = start(str(SCRIPT), *STARTERS[starter], "--backend", backend, "--", "--fail", "1", *by_hand)
    for rank in (0, 1):
        assert cell.printed("BACKEND", rank) == backend
        assert json.loads(cell.printed("LOSSES", rank)) == pytest.approx(single_process_curve(), rel=TOLERANCE)
        check_environment(json.loads(cell.printed("ENVIRONMENT", rank)), backend, rank, nodes)
    check_listeners(cell, starter, set(planned))
    assert cell.code == 1
    failure = cell.report["failure"]
    assert (failure["rank"], failure["node"]) == (1, f"node{nodes - 1}")
    assert (failure["code"], failure["signal"]) == (1, None)
    assert failure["text"].splitlines()[-1] == "ValueError: boom of this script"
    assert all(not node["left"] for node in cell.report["nodes"].values())


def check_environment(environment: dict[str, str], backend: str, rank: int, nodes: int) -> None:
    """Compare with the first cell with this backend and number of nodes."""
    shared = {
        name: value
        for name, value in environment.items()
        if name.startswith(tuple(SHARED.split())) and name not in TRANSPORT.split()
    }
    assert shared["RANK"] == str(rank)
    assert shared == FIRST_ENVIRONMENTS.setdefault((backend, nodes, rank), shared)


def check_listeners(cell: Cell, starter: str, planned: set[str]) -> None:
    """Check that all programs but the daemons of MPI listen only at the planned addresses."""
    listeners = [tuple(listener) for rank in (0, 1) for listener in json.loads(cell.printed("LISTENERS", rank))]
    free = () if starter == "torchrun" else DAEMONS
    bound = {address for program, address in listeners if not program.startswith(free)}
    assert bound, "the ranks have met somewhere"
    assert bound <= planned, listeners
