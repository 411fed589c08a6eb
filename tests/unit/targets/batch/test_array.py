"""Check arrays of runs."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

from orch_node.protocol import batch as protocol
from orch_node.protocol.batch import CONFIG

from tests.support.slurm_plans import SITE, make_array, script_of


def test_each_task_of_an_array_is_a_run_with_its_own_settings(tmp_path: Path) -> None:
    text = script_of("array").replace("/shared/alice/runs", str(tmp_path))
    assert "#SBATCH --array=0-1" in text
    head, _, command = text.rstrip().rpartition("\nexec ")
    for number, rate in enumerate(("1e-5", "3e-5")):
        environ = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_JOB_ID": "12"}
        subprocess.run(["bash", "-c", head], check=True, env={**os.environ, **environ})
        folder = tmp_path / f"{SITE.run_id}-{number}"
        config = protocol.parse((folder / CONFIG).read_text())
        assert f"--learning_rate={rate}" in config.launcher
        assert f"--output_dir={folder}/output" in config.launcher
        assert (folder / f"slurm-12_{number}.out").exists()
    assert command.endswith(' job "$run_dir"')


def test_array_may_limit_the_tasks_that_run_at_once() -> None:
    for axes, tasks in (
        (("learning_rate=1e-5,3e-5,1e-4%2",), "0-2%2"),
        (("learning_rate=1e-5,3e-5%1", "max_seq_length=64,128"), "0-3%1"),
        (("learning_rate=1e-5,3e-5",), "0-1"),
    ):
        array_plan = make_array(*axes)
        assert f"#SBATCH --array={tasks}\n" in array_plan.describe()
        resumed = replace(array_plan, steps=2 * array_plan.steps)  # a script for each member
        assert resumed.describe() == f"{array_plan.describe()}\n{array_plan.describe()}"
        assert not any("%" in decision.describe() for plan in array_plan.array for decision in plan.run.decisions)
