"""Check that job scripts match the golden files, pass shellcheck, and are safe for hostile values."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from orchestrator.model.hosts import NodeCount
from orchestrator.report import plans
from orchestrator.targets.batch.slurm import time_seconds
from tests.support.slurm_plans import CASES, make_plan, script_of, slurm_settings

GOLDEN = Path(__file__).parents[3] / "golden" / "slurm"


def test_golden_scripts_pass_shellcheck() -> None:
    for case in CASES:
        path = GOLDEN / f"{case}.sh"
        text = script_of(case)
        if "ORCH_WRITE_GOLDEN" in os.environ:
            path.write_text(text)
        assert text == path.read_text()
    scripts = [str(GOLDEN / f"{case}.sh") for case in CASES]
    assert subprocess.run(["shellcheck", "--shell=bash", *scripts], capture_output=True, text=True).stdout == ""


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
    for text, seconds in (("2", 120), ("2:30", 150), ("1-2:30", 95_400), ("0-0:02:30", 150), ("UNLIMITED", None)):
        assert time_seconds(text) == seconds
