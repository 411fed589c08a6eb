"""What must be the same whatever starts the ranks and whatever they talk through.

One run of tests/scripts/curve.py is one cell: its loss curve against that of a single process, the
report of its failure against a fixed one, its environment against that of the other cells, and the
addresses at which it listens against the planned ones. CI runs some of the cells (see `cells`),
ORCH_MATRIX_ALL=1 all. What holds is written down in docs/matrix.json if ORCH_WRITE_MATRIX is set;
the table of docs/how-to/launchers.md is made of it (`python -m tests.matrix docs/how-to/launchers.md`).
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

SCRIPT = Path(__file__).parent / "scripts" / "curve.py"
RESULTS = Path(__file__).parent.parent / "docs" / "matrix.json"
BEGIN, END = "<!-- matrix: made by tests/matrix.py -->", "<!-- end of matrix -->"
# fp32, 2 ranks: the mean of two halves of the data rounds otherwise than the mean of the whole.
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
WHOLE = ("mpirun, Intel MPI", "torchrun")  # what most runs start with: with DDP, others by hand
DAEMONS = ("mpiexec", "mpirun", "hydra", "prte")
# What every rank must find, the same below all launchers; and what only says how oneCCL talks.
SHARED = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "OMP_NUM_THREADS",
    "PYTHONUNBUFFERED",
    "TOKENIZERS_PARALLELISM",
    "LD_PRELOAD",
    "KMP_",
    "CCL_",
    "GLOO_",
    "TP_",
    "FI_TCP",
    "GROUP_",
    "NODE_RANK",
    "ROLE_",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCH_NCCL_",
)
TRANSPORT = (
    "CCL_ATL_TRANSPORT",
    "CCL_PROCESS_LAUNCHER",
    "CCL_LOCAL_RANK",
    "CCL_LOCAL_SIZE",
    "CCL_ALLREDUCE",
    "CCL_ALLTOALLV",
    "CCL_RS_CHUNK_COUNT",
    "CCL_ATL_MPI_BF16",
)


@dataclass
class Cell:
    """How a run of the script ended, and what its ranks printed."""

    code: int
    report: dict[str, Any]
    logs: dict[int, str]

    @classmethod
    def of(cls, code: int, report: dict[str, Any]) -> Cell:
        logs = Path(report["folder"], "ranks").glob("rank-*.log")
        texts = {int(path.stem[5:]): path.read_text(errors="replace") for path in logs}
        return cls(code=code, report=report, logs=texts)

    def said(self, word: str, rank: int) -> Any:
        lines = self.logs[rank].splitlines()
        found = [line[len(word) + 1 :] for line in lines if line.startswith(f"{word} ")]
        assert found, f"rank {rank} printed no {word}:\n{self.logs[rank]}"
        return found[0]


def cells(nodes: int) -> list[tuple[str, str]]:
    """(starter, backend): all with ORCH_MATRIX_ALL. Else, but for WHOLE, each pair on one node or
    on two, and each starter and each backend on both."""
    if "ORCH_MATRIX_ALL" in os.environ:
        return CELLS
    turn = {cell: (number + number // 2) % 2 for number, cell in enumerate(CELLS)}
    return [cell for cell in CELLS if cell[0] in WHOLE or turn[cell] == nodes % 2]


def averages_by_ddp(starter: str) -> bool:
    """DDP is the same below all launchers, and half of the time of a run: with ORCH_MATRIX_ALL all
    have it. Where it is not, the script averages gradients itself."""
    return starter in WHOLE or "ORCH_MATRIX_ALL" in os.environ


Start = Callable[..., Cell]
SEEN: dict[tuple[str, int, int], dict[str, str]] = {}


@functools.cache
def alone() -> list[float]:
    """The curve of a single process, apart from whatever other tests have brought into this one."""
    program = "import json, curve; print(json.dumps(curve.curve(0, 1)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=SCRIPT.parent, capture_output=True, text=True, check=True, timeout=120
    )
    return list(json.loads(done.stdout))


def check(start: Start, starter: str, backend: str, *, planned: tuple[str, ...]) -> None:
    """All that is said of one cell; `start` runs orch train with these arguments on as many nodes
    as there are `planned` addresses."""
    nodes = len(planned)
    own = ("--fail", "1") if averages_by_ddp(starter) else ("--fail", "1", "--by-hand")
    cell = start(str(SCRIPT), *STARTERS[starter], "--backend", backend, "--", *own)
    for rank in (0, 1):
        assert cell.said("BACKEND", rank) == backend
        losses = json.loads(cell.said("LOSSES", rank))
        assert losses == pytest.approx(alone(), rel=TOLERANCE)
        check_environment(json.loads(cell.said("ENVIRONMENT", rank)), backend, rank, nodes)
    check_listeners(cell, starter, set(planned))
    assert cell.code == 1
    failure = cell.report["failure"]
    assert (failure["rank"], failure["node"]) == (1, f"node{nodes - 1}")
    assert (failure["code"], failure["signal"]) == (1, None)
    assert failure["text"].splitlines()[-1] == "ValueError: boom of this script"
    assert all(not one["left"] for one in cell.report["nodes"].values())
    note(starter, backend, nodes)


def check_environment(found: dict[str, str], backend: str, rank: int, nodes: int) -> None:
    """The same as of the first cell with this backend on so many nodes."""
    shared = {name: value for name, value in found.items() if name.startswith(SHARED) and name not in TRANSPORT}
    assert shared["RANK"] == str(rank)
    assert shared == SEEN.setdefault((backend, nodes, rank), shared)


def check_listeners(cell: Cell, starter: str, planned: set[str]) -> None:
    """Only at the planned addresses, but for what no flavour of MPI can be told."""
    found = [tuple(one) for rank in (0, 1) for one in json.loads(cell.said("LISTENERS", rank))]
    free = () if starter == "torchrun" else DAEMONS
    bound = {address for program, address in found if not program.startswith(free)}
    assert bound, "the ranks have met somewhere"
    assert bound <= planned, found


def note(starter: str, backend: str, nodes: int) -> None:
    """Write down that this holds."""
    if not os.environ.get("ORCH_WRITE_MATRIX"):
        return
    held = read()
    key = f"{backend}, {nodes} node{'s' * (nodes > 1)}"
    held.setdefault(starter, [])
    held[starter] = sorted({*held[starter], key})
    RESULTS.write_text(json.dumps(held, indent=1) + "\n")


def read() -> dict[str, list[str]]:
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def table() -> str:
    """The table of docs/how-to/launchers.md: a tick where a test has seen it."""
    columns = [f"{backend}, {nodes}" for backend in BACKENDS for nodes in ("1 node", "2 nodes")]
    lines = ["| started by | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    held = read()
    for starter, words in STARTERS.items():
        flags = " ".join(words)
        ticks = ["yes" if column in held.get(starter, ()) else "-" for column in columns]
        lines.append(f"| {starter}: `{flags}` | " + " | ".join(ticks) + " |")
    return "\n".join(lines)


def with_table(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(with_table(Path(name).read_text()))
