"""Run torchrun under the supervisor: its restarts, arguments and variables; and train as without the supervisor."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.conftest import HOSTILE_TEXTS
from tests.local.runs import Orch, expect_exit, last_run, rank_log, read_events, read_outcome, torchrun, write_script

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


# Leaves the environment of each rank and its results.
TRAIN = """
import json, os, sys
from pathlib import Path
folder, rank = Path(sys.argv[1]), os.environ["RANK"]
(folder / rank).write_text(json.dumps(dict(os.environ)))
print(repr(sys.argv[2:]), flush=True)

import torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(4):
    loss = model(torch.randn(4, 8, 16)).pow(3).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
sums = [p.double().sum().item().hex() for p in model.parameters()]
(folder / f"result-{rank}").write_text(f"{loss.item().hex()} {sums}")
"""
HOSTILE_ARGUMENTS = (*HOSTILE_TEXTS, "--run", "--no", "--nnodes=7", "--")
PARENT_ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
# Variables for torchrun's own agent, and those that differ between runs.
AGENT_VARIABLES = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
RUN_VARIABLES = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS"}


def test_ranks_have_the_variables_and_results_of_torchrun_and_all_arguments(orch: Orch, tmp_path: Path) -> None:
    """Train without orch's kernels, and as two ranks of torchrun alone; the matrix compares all launchers."""
    folders = [tmp_path / "orch", tmp_path / "torchrun"]
    for folder in folders:
        folder.mkdir()
    script = write_script(tmp_path, TRAIN)
    torchrun(str(tmp_path / script), str(folders[1]), env=PARENT_ENVIRONMENT)
    options = ("--ppn", "2", *TORCHRUN, "--kernels", "torch", "-v")
    process = expect_exit(orch("train", script, *options, "--", str(folders[0]), *HOSTILE_ARGUMENTS))
    assert "kernels: torch (" in process.stderr
    run = last_run(tmp_path)
    assert repr(list(HOSTILE_ARGUMENTS)) in rank_log(run, 0).splitlines()
    for rank in ("0", "1"):
        result, reference = (json.loads((folder / rank).read_text()) for folder in folders)
        excluded = {*PARENT_ENVIRONMENT, *AGENT_VARIABLES}
        expected = {name: value for name, value in reference.items() if name not in excluded}
        assert expected.keys() - result.keys() == set()
        assert {name for name, value in expected.items() if result[name] != value} <= RUN_VARIABLES
        assert result["NODE_RANK"] == result["GROUP_RANK"]
        assert result["TORCHELASTIC_RUN_ID"] == run.name
        assert (folders[0] / f"result-{rank}").read_text() == (folders[1] / f"result-{rank}").read_text()
