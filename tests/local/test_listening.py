"""What of a run can be reached from where: only the planned address, and nothing that obeys."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import matrix
from tests.local.grounds import Ground
from tests.local.test_train import last_run

Orch = Callable[..., subprocess.CompletedProcess[str]]
SCRIPT = Path(__file__).parents[1] / "scripts" / "listening.py"
# What no flavour of MPI can be told to do otherwise.
INTEL = "mpirun, Intel MPI"
DAEMONS = ("mpiexec", "mpirun", "hydra", "prte")
# Writes into the store of torchrun's rendezvous what a stranger would: a pickle that runs code.
STRANGER = """
import base64, os, pathlib, pickle, time
import torch
from torch.distributed import TCPStore

class Payload:
    def __reduce__(self):
        return os.system, ("touch " + os.environ["ORCH_RUN_DIR"] + "/obeyed",)

run = pathlib.Path(os.environ["ORCH_RUN_DIR"]).name
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 500, is_master=False)
for _ in range(20):
    store.set(f"torch.rendezvous.{run}-1", base64.b64encode(pickle.dumps(Payload())))
    time.sleep(0.1)
"""


def listens(cell: matrix.Cell) -> dict[str, set[str]]:
    """Program -> addresses at which it listens, on any host."""
    found: dict[str, set[str]] = {}
    for text in cell.logs.values():
        for line in text.splitlines():
            if line.startswith("LISTENS "):
                program, address = json.loads(line.removeprefix("LISTENS "))
                found.setdefault(program, set()).add(address)
    return found


def check(ground: Ground, planned: set[str], *flags: str) -> None:
    cell = ground.start(str(SCRIPT), *flags)
    assert cell.code == 0, cell.logs
    assert len(cell.logs) == 2
    found = listens(cell)
    others = {program: at for program, at in found.items() if not program.startswith(DAEMONS)}
    assert others, "the ranks have met somewhere"
    assert {address for at in others.values() for address in at} <= planned, found
    if "torchrun" in flags:
        assert others == found


@pytest.mark.parametrize(
    ("starter", "backend"),
    [*((starter, "ccl") for starter in matrix.STARTERS), (INTEL, "gloo"), ("torchrun", "gloo")],
)
def test_one_machine_listens_at_its_loopback_alone(one: Ground, starter: str, backend: str) -> None:
    check(one, {"127.0.0.1"}, *matrix.STARTERS[starter], "--backend", backend)


@pytest.mark.parametrize(
    ("starter", "backend"),
    [(INTEL, "ccl"), (INTEL, "gloo"), ("mpirun, Open MPI", "ccl"), ("torchrun", "gloo")],
)
def test_nodes_listen_at_their_planned_addresses_alone(
    two: Ground, starter: str, backend: str
) -> None:
    assert two.lab is not None
    planned = {host.address for host in two.lab.hosts}
    check(two, planned, *matrix.STARTERS[starter], "--backend", backend)


def test_torchrun_obeys_no_stranger(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "stranger.py").write_text(STRANGER)
    done = orch("train", "stranger.py", "--ppn", "1", "--launcher", "torchrun", "--backend", "gloo")
    assert not (last_run(tmp_path) / "obeyed").exists()
    assert done.returncode == 1, "the rendezvous is not what its nodes have written"


FAILS_ONCE = """
import os, pathlib
import torch.distributed as dist
dist.init_process_group()
tries = pathlib.Path(os.environ["ORCH_RUN_DIR"], "tries")
dist.barrier()
if dist.get_rank() == 1:
    if not tries.exists():
        tries.touch()
        raise ValueError("boom")
dist.barrier()
print("TRAINED", os.environ["TORCHELASTIC_RESTART_COUNT"])
"""


def test_torchrun_starts_the_ranks_of_all_nodes_again(two: Ground) -> None:
    script = two.folder / "fails_once.py"
    script.write_text(FAILS_ONCE)
    cell = two.start(
        str(script), "--launcher", "torchrun", "--backend", "gloo", "--max-restarts", "1"
    )
    assert cell.code == 0, cell.logs
    assert [cell.said("TRAINED", rank) for rank in (0, 1)] == ["1", "1"]
