"""Run torchrun under the supervisor: its restarts, its rendezvous, hostile arguments and its variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HOSTILE_TEXTS
from tests.local.runs import (
    Orch,
    expect_exit,
    last_run,
    rank_log,
    read_events,
    read_outcome,
    run_processes,
    write_script,
)
from tests.support.ports import free_port

TORCHRUN = ("--launcher", "torchrun", "--backend", "gloo")
# Fails on rank 1 as often as the argument says; a file counts the attempts.
FAIL = """
import os, pathlib, sys
import torch.distributed as dist
dist.init_process_group()
attempts = pathlib.Path(os.environ["ORCH_RUN_DIR"], "attempts")
dist.barrier()
if dist.get_rank() == 1:
    attempts.write_text(attempts.read_text() + "x" if attempts.exists() else "x")
    if len(attempts.read_text()) <= int(sys.argv[1]):
        raise ValueError("boom")
dist.barrier()
print("TRAINED", os.environ["TORCHELASTIC_RESTART_COUNT"])
print("FILE", os.environ["TORCHELASTIC_ERROR_FILE"])
"""
# Writes a pickle that runs code into the store of torchrun's rendezvous, as an attacker would.
ATTACK = """
import base64, os, pathlib, pickle, time
import torch
from torch.distributed import TCPStore

class Payload:
    def __reduce__(self):
        return os.system, ("touch " + os.environ["ORCH_RUN_DIR"] + "/attacked",)

run = pathlib.Path(os.environ["ORCH_RUN_DIR"]).name
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 500, is_master=False)
for _ in range(20):
    store.set(f"torch.rendezvous.{run}-1", base64.b64encode(pickle.dumps(Payload())))
    time.sleep(0.1)
"""


def test_torchrun_restarts_failed_ranks(orch: Orch, tmp_path: Path) -> None:
    script = write_script(tmp_path, FAIL)
    expect_exit(orch("train", script, "--ppn", "2", *TORCHRUN, "--max-restarts", "1", "--", "1"))
    run = last_run(tmp_path)
    assert "TRAINED 1" in rank_log(run, 0)
    assert f"FILE {run}/.torchrun-" in rank_log(run, 0)
    assert not list(run.glob(".torchrun-*"))
    assert len(read_events(run, "launched")) == 1, "the launcher is started once"
    (restart,) = read_events(run, "restarting")
    assert restart["after"]["rank"] == 1
    assert read_outcome(run)["state"] == "done"


def test_failure_after_the_last_restart_is_reported(orch: Orch, tmp_path: Path) -> None:
    script = write_script(tmp_path, FAIL)
    process = expect_exit(orch("train", script, "--ppn", "2", *TORCHRUN, "--max-restarts", "1", "--", "9"), 1)
    assert "rank 1 on node0 exited with code 1" in process.stderr
    assert "ValueError: boom" in process.stderr
    run = last_run(tmp_path)
    assert (run / "attempts").read_text() == "xx", "orch and torchrun do not both restart"
    assert run_processes(run) == []


def test_torchrun_runs_no_code_from_its_rendezvous(orch: Orch, tmp_path: Path) -> None:
    """Attack the rendezvous; tests/support/matrix.py checks who listens at which addresses."""
    expect_exit(orch("train", write_script(tmp_path, ATTACK), "--ppn", "1", *TORCHRUN), 1)
    assert not (last_run(tmp_path) / "attacked").exists()


SAVE_ENVIRONMENT = """
import json, os, sys
from pathlib import Path
Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps(dict(os.environ)))
print(repr(sys.argv[2:]))
"""
HOSTILE_ARGUMENTS = (*HOSTILE_TEXTS, "--run", "--no", "--nnodes=7", "--")
PARENT_ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
# Variables for torchrun's own agent, and those that differ between runs.
AGENT_VARIABLES = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
RUN_VARIABLES = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS"}


def read_environments(folder: Path) -> dict[str, dict[str, str]]:
    """Return the environment that each rank has saved."""
    return {file.name: json.loads(file.read_text()) for file in folder.iterdir()}


@pytest.fixture(scope="module")
def torchrun_environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Return the environments of two ranks that torchrun has started without orch."""
    folder, output = tmp_path_factory.mktemp("script"), tmp_path_factory.mktemp("torchrun")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}"]
    command = [*torchrun, str(folder / write_script(folder, SAVE_ENVIRONMENT)), str(output)]
    expect_exit(subprocess.run(command, env=PARENT_ENVIRONMENT, capture_output=True, text=True, timeout=120))
    return read_environments(output)


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])  # the matrix compares all launchers
def test_ranks_have_the_variables_that_torchrun_sets_and_all_arguments(
    orch: Orch, tmp_path: Path, launcher: str, torchrun_environments: dict[str, dict[str, str]]
) -> None:
    (tmp_path / "output").mkdir()
    script = write_script(tmp_path, SAVE_ENVIRONMENT)
    arguments = (str(tmp_path / "output"), *HOSTILE_ARGUMENTS)
    expect_exit(orch("train", script, "--ppn", "2", "--launcher", launcher, "--", *arguments))
    assert rank_log(last_run(tmp_path), 0).splitlines()[-1] == repr(list(HOSTILE_ARGUMENTS))
    run, results = last_run(tmp_path), read_environments(tmp_path / "output")
    for rank in ("0", "1"):
        result, excluded = results[rank], {*PARENT_ENVIRONMENT, *AGENT_VARIABLES}
        expected = {name: value for name, value in torchrun_environments[rank].items() if name not in excluded}
        assert expected.keys() - result.keys() == set()
        assert {name for name, value in expected.items() if result[name] != value} <= RUN_VARIABLES
        assert result["NODE_RANK"] == result["GROUP_RANK"]
        assert result["TORCHELASTIC_RUN_ID"] == run.name
