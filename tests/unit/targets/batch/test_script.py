"""Check that job scripts match the golden files, pass shellcheck, and are safe for hostile values."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from orch_node.protocol import batch as protocol
from orch_node.protocol.batch import CONFIG, NODE0

from orchestrator.model.hosts import NodeCount
from orchestrator.report import plans
from orchestrator.targets.batch.slurm import time_seconds
from tests.support.slurm_plans import CASES, SITE, make_plan, script_of, slurm_settings

GOLDEN = Path(__file__).parents[3] / "golden" / "slurm"


def test_golden_scripts() -> None:
    for case in CASES:
        path = GOLDEN / f"{case}.sh"
        text = script_of(case)
        if "ORCH_WRITE_GOLDEN" in os.environ:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text()


def test_scripts_pass_shellcheck(tmp_path: Path) -> None:
    for case in CASES:
        if shutil.which("shellcheck") is None:
            pytest.fail("no shellcheck: pip install --editable '.[dev]'")
        path = tmp_path / "job.sh"
        path.write_text(script_of(case))
        done = subprocess.run(["shellcheck", "--shell=bash", str(path)], capture_output=True, text=True)
        assert done.stdout == ""


def test_script_writes_the_settings_of_the_job(tmp_path: Path) -> None:
    """Run the part of the script between its options and its last command."""
    site = str(tmp_path / "runs")
    text = script_of("torchrun").replace("/shared/alice/runs", site)
    head, _, command = text.rstrip().rpartition("\nexec ")
    subprocess.run(["bash", "-c", head], check=True, cwd=tmp_path)
    config = protocol.parse((tmp_path / "runs" / SITE.run_id / CONFIG).read_text())
    assert (config.nodes, config.spare_nodes, config.ppn, config.launch) == (2, 1, 1, "torchrun")
    assert any(word.startswith(f"--meet={NODE0}:") for word in config.launcher)
    assert command.endswith(f"/node.py job {site}/{SITE.run_id}")
    assert not (tmp_path / "PWNED").exists()


def test_options_are_lines_that_sbatch_reads() -> None:
    lines = [line for line in script_of("torchrun").splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --nodes=3" in lines  # This includes the spare node.
    assert "#SBATCH --no-kill" in lines
    assert "#SBATCH --constraint='avx512&ib'" in lines
    assert "#SBATCH --exclusive" in lines  # No setting limits the job to a part of a node.
    assert "#SBATCH --exclusive" not in script_of("mpirun")


def test_thousand_nodes_are_one_script() -> None:
    plan = make_plan({"nodes": NodeCount(1000), "ppn": 8})
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


def test_time_limits_are_read_as_sbatch_reads_them() -> None:
    for text, seconds in (
        ("2", 120),
        ("2:30", 150),
        ("1:00:00", 3600),
        ("1-0", 86_400),
        ("1-2:30", 95_400),
        ("0-0:02:30", 150),
        ("UNLIMITED", None),
        ("1:2:3:4", None),
        ("", None),
    ):
        assert time_seconds(text) == seconds


def test_time_limit_below_the_reserve_for_a_checkpoint_is_reported() -> None:
    def reason(*assignments: str) -> str:
        decisions = make_plan({}, slurm_settings(None, assignments, {})).run.decisions
        return next(decision.reason for decision in decisions if decision.topic == "slurm time")

    assert "reserved for a checkpoint" in reason("time=2")
    assert reason("time=10") == "requested"
    assert reason("time=2", "signal=B:TERM@30") == "requested"
