"""Run `orch recipes new`, and train the recipe that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.operations.init import new_recipe
from orchestrator.planning.plan import SendFile
from orchestrator.planning.request import Site, TrainRequest
from orchestrator.targets.ssh.plan import plan_train
from tests.conftest import make_cluster, make_node, make_stack
from tests.local.runs import Orch, expect_exit
from tests.support.plans import make_inputs

CHECK_VARIABLES = """
import os
assert os.environ["TOY"] == "recipe's" and os.environ["OWN"] == "user's"
"""


def test_new_recipe_trains(orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = expect_exit(orch("recipes", "new", "my-own", warm=False))
    assert "orch train my-own --recipe-path my_own --ppn 2" in process.stdout
    assert "my-own" in orch("recipes", "--recipe-path", "my_own").stdout
    with (tmp_path / "my_own" / "recipe.toml").open("a") as file:
        file.write('\n[environment]\nTOY = "recipe\'s"\nOWN = "recipe\'s"\n')
    with (tmp_path / "my_own" / "train.py").open("a") as file:
        file.write(CHECK_VARIABLES)
    monkeypatch.setenv("OWN", "user's")
    options = ("--ppn", "2", "--precision", "fp32", "--preset", "long")
    process = orch("train", "my-own", "--recipe-path", "my_own", *options, "--json", timeout=200)
    result = json.loads(expect_exit(process).stdout)["result"]
    assert result["world_size"] == 2
    assert result["after"]["loss"] < result["before"]["loss"] / 2


def test_all_files_of_a_recipe_are_sent_to_other_nodes(tmp_path: Path) -> None:
    folder = new_recipe("my-own", tmp_path)
    (folder / "parts").mkdir()
    (folder / "parts" / "loss.py").write_text("")
    plan = plan_train(
        TrainRequest(recipe="my-own", precision="fp32"),
        make_inputs(make_cluster(make_node(via=("ssh", "node0"))), load.recipe("my-own", (folder,)), make_stack()),
        Site(
            run_id="r",
            run_dir="/opt/orch/runs/r",
            train="/opt/orch/train",
            train_here="/here/train",
            store="/opt/orch/store",
            started_by="me@here",
            created=1.0,
        ),
    )
    sent = {step.path for step in plan.steps if isinstance(step, SendFile)}
    assert {"/opt/orch/runs/r/files/recipe/train.py", "/opt/orch/runs/r/files/recipe/parts/loss.py"} <= sent
