"""Train on one GPU: with one rank, and with two that share it by NCCL over sockets.

ORCH_GPU_VENV names an environment with a torch for GPUs. It needs no package of orch.
"""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.runs import store
from orchestrator.runs.outcome import outcome_of

Orch = Callable[..., "subprocess.CompletedProcess[str]"]
VENV = os.environ.get("ORCH_GPU_VENV", "")
pytestmark = [
    pytest.mark.skipif(not VENV, reason="needs ORCH_GPU_VENV, an environment with a torch for GPUs, and a GPU"),
    pytest.mark.xdist_group("gpu"),
]
# Ranks share a GPU only if NCCL takes them for ranks of different hosts.
BEGIN = """
import os, sys, time, datetime
os.environ["NCCL_HOSTID"] = os.environ["RANK"]
import torch, torch.distributed as dist
device = torch.device("cuda", 0)
torch.cuda.set_device(device)
rank = int(os.environ["RANK"])
"""
TRAIN = """
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
print("BACKEND", dist.get_backend_config(), dist.group.WORLD.bound_device_id, flush=True)
for place in ("cpu", "cuda"):
    tensor = torch.ones(4, device=place)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [float(dist.get_world_size())] * 4
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    model(torch.randn(8, 64, device=device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
time.sleep(3)  # until metrics have read the memory
print("DONE", flush=True)
"""
# Rank 1 stops after 20 collectives; rank 0 enqueues more before it waits.
TIMEOUT = """
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=20))
tensor = torch.ones(4, device=device)
for step in range(25):
    if rank == 1 and step == 20:
        torch.cuda.synchronize()
        time.sleep(600)
    dist.all_reduce(tensor)
torch.cuda.synchronize()
"""


def train(orch: Orch, folder: Path, body: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Train with a script on the environment of ORCH_GPU_VENV, and return the result of the command."""
    (folder / "train.py").write_text(BEGIN + textwrap.dedent(body))
    return orch("train", "train.py", "--venv", VENV, "--backend", "nccl", *options, timeout=300)


def run_folder(folder: Path) -> Path:
    """Return the folder of the only run."""
    (path,) = (folder / "runs").glob("2*")
    return path


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_train(orch: Orch, tmp_path: Path, ranks: int, launcher: str) -> None:
    shared = ("--env", "NCCL_HOSTID=shared") if ranks > 1 else ()
    done = train(orch, tmp_path, TRAIN, "--ppn", str(ranks), "--launcher", launcher, *shared)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "BACKEND cpu:gloo,cuda:nccl cuda:0" in (run_folder(tmp_path) / "ranks/rank-0.log").read_text()
    metrics = (run_folder(tmp_path) / "ranks/rank-0.metrics.jsonl").read_text().splitlines()
    assert max(json.loads(line)["gpu_bytes"] or 0 for line in metrics) > 0
    decisions = {decision.topic: decision.value for decision in store.load(run_folder(tmp_path)).record.decisions}
    assert decisions["gpus"].startswith("1 x ")


def test_timeout_of_nccl_names_the_rank_behind(orch: Orch, tmp_path: Path) -> None:
    assert train(orch, tmp_path, TIMEOUT, "--ppn", "2", "--env", "NCCL_HOSTID=shared").returncode != 0
    problem = outcome_of(store.load(run_folder(tmp_path))).problem or ""
    assert "NCCL's timeout of 20 s is over: 1 of 2 ranks wait in collective 21" in problem
    assert "rank 1 (at 20)" in problem
    assert "train.py" in problem
