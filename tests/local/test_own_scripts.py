"""Run a script with Trainer, a new recipe, and a backend of a third party.

The matrix runs a script with plain DDP with each launcher; test_frameworks.py runs an Accelerator.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.local.runs import SCRIPTS, expect_exit
from tests.local.workspaces import Workspace


def test_trainer_trains_on_two_nodes(two_hosts: Workspace, tmp_path: Path) -> None:
    """Do not request the CPU from the Trainer, which needs no such change under orch.

    Leave a file open to the interpreter, which ranks do not finalize because threads of torch would abort them.
    """
    text = (SCRIPTS / "with_trainer.py").read_text().replace("use_cpu=True", "use_cpu=False")
    text += f"file = open(f'{tmp_path}/left-{{dist.get_rank()}}', 'w')\nfile.write('kept')\n"
    cell = two_hosts.train_text(text, "--backend", "ccl", "--", "out")
    result = cell.printed("DONE", 0)
    assert result.startswith("ccl 2 [")
    losses = [float(loss) for loss in result[7:-1].split(",")]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 2
    lines = Path(cell.report["folder"], "ranks", "rank-0.metrics.jsonl").read_text().splitlines()
    last_loss = json.loads(lines[-1])["loss"]
    assert f", {last_loss:.4f}"[:6] in result, "the report has the losses that the Trainer logs"
    assert [(tmp_path / f"left-{rank}").read_text() for rank in range(2)] == ["kept", "kept"]


BACKEND = """
import torch.distributed as dist

BACKEND = {"name": "toy", "summary": "gloo by another name", "module": "toy_backend",
           "env": {"TOY_MODE": "on"}, "requirements": {"toy-backend": "1.0"}}


def create(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)


dist.Backend.register_backend("toy", create, devices=["cpu"])
"""
REQUIREMENTS = '{"toy-backend": "1.0"}'


@pytest.fixture
def toy_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a distribution importable whose entry point is a backend, and return its module.

    The distribution needs nothing of orch.
    """
    metadata = tmp_path / "toy_backend-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[orch.backends]\ntoy = toy_backend:BACKEND\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "toy_backend.py"


def test_backend_of_a_third_party_trains(one_host: Workspace, toy_backend: Path) -> None:
    toy_backend.write_text(BACKEND)
    script = str(SCRIPTS / "curve.py")
    refused = one_host.orch("train", script, "--backend", "toy", "--dry-run")
    assert "node0 has no toy-backend" in refused.stderr, "it is not in the stack's environment"
    toy_backend.write_text(BACKEND.replace(REQUIREMENTS, "{}"))
    cell = one_host.train(script, "--backend", "toy", "--", "--by-hand")
    assert cell.printed("BACKEND", 1) == "toy"
    assert '"TOY_MODE": "on"' in cell.printed("ENVIRONMENT", 0)


CHECK_VARIABLES = """
import os
from parts.names import RECIPE
assert (os.environ["TOY"], os.environ["OWN"]) == (RECIPE, "user's")
"""


def test_new_recipe_trains(two_hosts: Workspace) -> None:
    process = expect_exit(two_hosts.orch("recipes", "new", "my-own"))
    assert "orch train my-own --recipe-path my_own --ppn 2" in process.stdout
    assert "my-own" in two_hosts.orch("recipes", "--recipe-path", "my_own").stdout
    recipe = two_hosts.folder / "my_own"
    (recipe / "parts").mkdir()
    (recipe / "parts" / "names.py").write_text('RECIPE = "recipe\'s"\n')
    with (recipe / "recipe.toml").open("a") as file:
        file.write('\n[environment]\nTOY = "recipe\'s"\nOWN = "recipe\'s"\n')
    with (recipe / "train.py").open("a") as file:
        file.write(CHECK_VARIABLES)
    options = ("--env", "OWN=user's", "--precision", "fp32", "--preset", "long", *two_hosts.options, "--json")
    process = two_hosts.orch("train", "my-own", "--recipe-path", "my_own", *options)
    result = json.loads(expect_exit(process).stdout)["result"]
    assert result["world_size"] == 2
    assert result["after"]["loss"] < result["before"]["loss"] / 2
