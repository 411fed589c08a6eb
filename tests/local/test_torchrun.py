"""torchrun below the supervisor: its own restarts, its hostile arguments, and what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HOSTILE
from tests.local.runs import Orch, expect_exit, last_run, leftover_processes, rank_log
from tests.support.ports import free_port

# Fails on rank 1 as often as its argument says; counted in a file.
FAILS = """
import os, pathlib, sys, time
import torch.distributed as dist
dist.init_process_group()
tries = pathlib.Path(os.environ["ORCH_RUN_DIR"], "tries")
dist.barrier()
if dist.get_rank() == 1:
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    if len(tries.read_text()) <= int(sys.argv[1]):
        raise ValueError("boom")
dist.barrier()
print("TRAINED", len(tries.read_text()))
"""


def train(orch: Orch, folder: Path, failures: int) -> subprocess.CompletedProcess[str]:
    (folder / "fails.py").write_text(FAILS)
    return orch(
        "train",
        "fails.py",
        "--ppn",
        "2",
        "--launcher",
        "torchrun",
        "--backend",
        "gloo",
        "--max-restarts",
        "1",
        "--",
        str(failures),
    )


def events(run: Path, kind: str) -> list[dict[str, object]]:
    lines = (run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_torchrun_starts_failed_ranks_again_itself(orch: Orch, tmp_path: Path) -> None:
    expect_exit(train(orch, tmp_path, failures=1))
    run = last_run(tmp_path)
    assert "TRAINED 2" in rank_log(run, 0)
    assert len(events(run, "launched")) == 1, "the launcher was started once"
    (told,) = events(run, "restarting")
    assert told["after"]["rank"] == 1  # type: ignore[index]
    assert json.loads((run / "outcome.json").read_text())["state"] == "done"


def test_after_the_last_restart_the_failure_is_reported(orch: Orch, tmp_path: Path) -> None:
    process = expect_exit(train(orch, tmp_path, failures=9), 1)
    assert "rank 1 on node0 exited with code 1" in process.stdout
    assert "ValueError: boom" in process.stdout
    run = last_run(tmp_path)
    assert (run / "tries").read_text() == "xx", "one restart, not one of ours and one of torchrun's"
    assert leftover_processes(run) == []


def test_hostile_arguments_arrive_unchanged(orch: Orch, tmp_path: Path) -> None:
    words = (*HOSTILE, "--run", "--no", "--nnodes=7", "--")
    (tmp_path / "show.py").write_text("import sys\nprint(repr(sys.argv[1:]))")
    for launcher in ("torchrun", "accelerate"):
        expect_exit(orch("train", "show.py", "--ppn", "1", "--launcher", launcher, "--", *words))
        assert rank_log(last_run(tmp_path), 0).splitlines()[-1] == repr(list(words))


DUMP = """
import json, os, sys
from pathlib import Path
Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps(dict(os.environ)))
"""
# Of torchrun and its own agent, not of the script; and what is different for each run.
TORCHRUNS_OWN = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
DIFFERENT = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS"}


def environments(folder: Path) -> dict[str, dict[str, str]]:
    return {file.name: json.loads(file.read_text()) for file in folder.iterdir()}


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun", "accelerate", "mpirun-accelerate"])
def test_ranks_have_the_variables_that_torchrun_sets(orch: Orch, tmp_path: Path, launcher: str) -> None:
    (tmp_path / "dump.py").write_text(DUMP)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    meeting = f"--master_port={free_port()}"
    folders = {name: tmp_path / name for name in ("torchrun's", "orch's")}
    for folder in folders.values():
        folder.mkdir()
    parent = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    process = subprocess.run(
        [*torchrun, meeting, str(tmp_path / "dump.py"), str(folders["torchrun's"])],
        env=parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    expected = environments(folders["torchrun's"])
    assert len(expected) == 2, process.stderr
    expect_exit(orch("train", "dump.py", "--ppn", "2", "--launcher", launcher, "--", str(folders["orch's"])))
    run, results = last_run(tmp_path), environments(folders["orch's"])
    for rank in ("0", "1"):
        result = results[rank]
        variables = {k: v for k, v in expected[rank].items() if k not in {*parent, *TORCHRUNS_OWN}}
        assert variables.keys() - result.keys() == set()
        different = {name for name, value in variables.items() if result[name] != value}
        assert different <= DIFFERENT
        assert result["NODE_RANK"] == result["GROUP_RANK"]
        assert result["TORCHELASTIC_RUN_ID"] == run.name
