"""Train a script on an older torch than that of any stack of the other tests: that of Debian 12, in a container."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from orchestrator.operations.train import plan
from orchestrator.planning.plan import Plan, PutFile
from orchestrator.planning.request import TrainRequest
from tests.conftest import require_program
from tests.torches.debian import CHECKOUT, FOLDER, output_of

pytestmark = pytest.mark.xdist_group("other torches")
SCRIPT = """
import torch
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
print(f"trained on torch {torch.__version__}")
"""
BOTH_RANKS = """
RANK=1 WORLD_SIZE=2 "$@" & other=$!
RANK=0 WORLD_SIZE=2 "$@"; code=$?
wait "$other" && exit $code
"""


def test_script_trains_on_torch_1_13(tmp_path: Path) -> None:
    require_program("docker")
    image = output_of(str(FOLDER / "image"), "bookworm", "python3-torch").splitlines()[-1]
    (tmp_path / "own.py").write_text(SCRIPT)
    request = TrainRequest(recipe=str(tmp_path / "own.py"), ppn=2, backend="gloo", runs_dir=tmp_path / "runs")
    folder = write_files(plan(request))
    rank = ("python3", f"{CHECKOUT}/train/node.py", "rank", "--run", str(folder), "--", request.recipe)
    mounts = (f"--volume={CHECKOUT}:{CHECKOUT}:ro", f"--volume={tmp_path}:{tmp_path}")
    options = ("--rm", "--init", f"--hostname={socket.gethostname()}", f"--env=ORCH_RUN_DIR={folder}", *mounts)
    command = ("docker", "run", *options, image, "sh", "-c", BOTH_RANKS, "sh", *rank)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    logs = [path.read_text() for path in sorted((folder / "ranks").glob("*.log"))]
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:], logs)
    assert ["trained on torch 1.13" in log for log in logs] == [True, True], logs
    assert "does not check whether the ranks train one model" in logs[0]


def write_files(planned: Plan) -> Path:
    """Write the files of a run, without the version of torch that was planned."""
    folder = Path(planned.run.run_dir)
    (folder / "ranks").mkdir(parents=True)
    for step in planned.steps:
        if isinstance(step, PutFile):
            (folder / Path(step.path).name).write_text(step.content)
    layout = json.loads((folder / "layout.json").read_text())
    layout["nodes"][0]["torch"] = None
    (folder / "layout.json").write_text(json.dumps(layout))
    return folder
