"""Unmodified scripts with Trainer and with Accelerator on two nodes, through each launcher.

One with plain DDP is what the matrix runs; an Accelerator that `accelerate` has started is in
test_accelerate.py. And a backend of a third party.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.launchers import LAUNCHERS
from tests.local.workspaces import Workspace

SCRIPTS = Path(__file__).parents[1] / "scripts"
SEEN: dict[str, str] = {}
# Each launcher once; ORCH_MATRIX_ALL: each with each.
BELOW = {"with_trainer.py": ("mpirun", "accelerate"), "with_accelerator.py": ("torchrun", "mpirun-accelerate")}


def launchers(script: str) -> tuple[str, ...]:
    return tuple(LAUNCHERS) if "ORCH_MATRIX_ALL" in os.environ else BELOW[script]


@pytest.mark.parametrize(
    ("script", "launcher"), [(script, launcher) for script in BELOW for launcher in launchers(script)]
)
def test_an_unmodified_script_trains_alike_below_every_launcher(
    two_hosts: Workspace, script: str, launcher: str
) -> None:
    cell = two_hosts.train(str(SCRIPTS / script), "--launcher", launcher, "--backend", "ccl", "--", "out")
    assert cell.code == 0, cell.report
    told = cell.printed("DONE", 0)
    assert told.startswith("ccl 2 [")
    losses = [float(one) for one in told[7:-1].split(",")]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 2
    assert told == SEEN.setdefault(script, told), "the same curve below every launcher"


PLUGIN = """
import torch.distributed as dist

BACKEND = {"name": "toy", "summary": "gloo by another name", "module": "toy_backend",
           "env": {"TOY_MODE": "on"}, "requirements": {"toy-backend": "1.0"}}


def create(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)


dist.Backend.register_backend("toy", create, devices=["cpu"])
"""


def test_a_backend_of_a_third_party(one_host: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with a module and an entry point; of orch it needs nothing."""
    (tmp_path / "toy_backend.py").write_text(PLUGIN)
    metadata = tmp_path / "toy_backend-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[orch.backends]\ntoy = toy_backend:BACKEND\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    script = str(SCRIPTS / "curve.py")
    refused = one_host.orch("train", script, "--backend", "toy", "--dry-run")
    assert "node0 has no toy-backend" in refused.stderr, "it is not in the stack's environment"
    text = PLUGIN.replace('"requirements": {"toy-backend": "1.0"}', '"requirements": {}')
    (tmp_path / "toy_backend.py").write_text(text)
    cell = one_host.train(script, "--backend", "toy")
    assert cell.code == 0, cell.report
    assert cell.printed("BACKEND", 1) == "toy"
    assert '"TOY_MODE": "on"' in cell.printed("ENVIRONMENT", 0)


def test_a_group_without_the_cpu_is_watched_too(
    one_host: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate a backend that serves no tensors of the CPU, as nccl does not."""
    text = PLUGIN.replace('devices=["cpu"]', 'devices=["cuda"]')
    (tmp_path / "toy_backend.py").write_text(text.replace('{"toy-backend": "1.0"}', "{}"))
    metadata = tmp_path / "toy_backend-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[orch.backends]\ntoy = toy_backend:BACKEND\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    script = tmp_path / "own.py"
    script.write_text(
        "import time\nimport torch.distributed as dist\n"
        "print('DEVICES', dist.group.WORLD._device_types, dist.get_world_size(), flush=True)\n"
        "time.sleep(3)\n"  # heartbeats look at the group
    )
    cell = one_host.train(str(script), "--backend", "toy")
    assert cell.code == 0, cell.report
    assert cell.printed("DEVICES", 1) == "[device(type='cuda')] 2"
    assert "Traceback" not in cell.logs[0]


@pytest.mark.parametrize("backend", ["ccl", "gloo"])
def test_what_a_script_leaves_open_is_written(one_host: Workspace, tmp_path: Path, backend: str) -> None:
    """Ranks end without taking the interpreter down, where threads of torch would abort them."""
    script = tmp_path / "own.py"
    script.write_text(
        f"import torch.distributed as dist\nf = open(f'{tmp_path}/left-{{dist.get_rank()}}', 'w')\nf.write('kept')\n"
    )
    cell = one_host.train(str(script), "--backend", backend)
    assert cell.code == 0, cell.report
    assert [(tmp_path / f"left-{rank}").read_text() for rank in range(2)] == ["kept", "kept"]
