"""Check that job scripts match the golden files, pass shellcheck, and are safe for hostile values."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

from orch_node.protocol import batch as protocol
from orch_node.protocol.batch import CONFIG

from orchestrator.report import plans
from orchestrator.targets.batch.slurm import time_seconds
from tests.support.plans import GOLDEN, read_golden
from tests.support.slurm_plans import CASES, SITE, make_array, make_plan, script_of, slurm_settings


def test_golden_scripts_pass_shellcheck() -> None:
    for case in CASES:
        text = script_of(case)
        assert text == read_golden(f"slurm/{case}.sh", text)
    scripts = [str(GOLDEN / f"slurm/{case}.sh") for case in CASES]
    assert subprocess.run(["shellcheck", "--shell=bash", *scripts], capture_output=True, text=True).stdout == ""


def test_thousand_nodes_are_one_script() -> None:
    plan = make_plan({"nodes": 1000, "ppn": 8})
    assert len(plan.layout.rank_places) == 8000
    assert len(plan.describe()) < 20_000
    assert json.loads(plans.as_json(plan))["script"] == plan.describe()


def test_setup_commands_run_before_the_job_and_a_failing_one_ends_it(tmp_path: Path) -> None:
    settings = slurm_settings(None, ("setup=export GREETING='a b'", "setup=test -d /nowhere"), {})
    script = make_plan({}, settings).describe().replace("/shared/alice/runs", str(tmp_path))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: --slurm setup=test -d /nowhere failed\n"
    script = script.replace("test -d /nowhere\n", 'echo "$GREETING" $UNSET\n')
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stdout.startswith("a b\n")


def test_ranks_have_the_umask_of_the_user_and_the_settings_of_the_run_are_private(tmp_path: Path) -> None:
    script = make_plan({}, slurm_settings(None, ("setup=umask",), {})).describe()
    script = script.replace("/shared/alice/runs", str(tmp_path))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, umask=0o027)
    assert done.stdout.startswith("0027\n")
    assert (tmp_path / SITE.run_id / CONFIG).stat().st_mode & 0o777 == 0o600


def test_time_limits_are_read_as_sbatch_reads_them() -> None:
    for text, seconds in (("2", 120), ("2:30", 150), ("1-2:30", 95_400), ("0-0:02:30", 150), ("UNLIMITED", None)):
        assert time_seconds(text) == seconds


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
