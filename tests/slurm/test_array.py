"""Test `--array`: several runs as one job array of a real Slurm."""

from __future__ import annotations

import json
import shutil

from tests.slurm.conftest import FAULTY
from tests.slurm.runs import ONE_NODE, find_row
from tests.slurm.site import Site


def test_an_array_resumes_only_the_run_that_failed(site: Site) -> None:
    """Let argparse of the script refuse the second value; each run has its own copy of the project."""
    (site.home / "sweep").mkdir(exist_ok=True)
    shutil.copy(FAULTY, site.home / "sweep")
    options = (*ONE_NODE, "--project", "sweep", "--slurm", "cpus-per-task=1", "--array", "steps=8,none%1", "--json")
    done = site.orch("train", "sweep/faulty.py", *options, code=1)
    runs = json.loads(done.stdout)["runs"]
    assert [run["state"] for run in runs] == ["done", "failed"]
    good, bad = (run["run_id"] for run in runs)
    array = good.removesuffix("-0")
    assert array == bad.removesuffix("-1")
    assert f"{bad} steps=none (2 of 2): failed: " in done.stderr
    assert f"resume: orch resume {array}" in done.stderr
    folders = [site.home / "runs" / name for name in (good, bad)]
    jobs = [json.loads((folder / "plan.json").read_text())["location"]["job"] for folder in folders]
    assert [job.partition("_")[2] for job in jobs] == ["0", "1"]
    outcomes = [json.loads((folder / "outcome.json").read_text()) for folder in folders]
    assert outcomes[0]["ended"] <= outcomes[1]["started"], "one run at a time"
    assert all((folder / "project/faulty.py").is_file() for folder in folders)
    assert [find_row(site, name)["state"] for name in (good, bad)] == ["done", "failed"]
    done = site.orch("resume", array, "--json", code=1)
    assert json.loads(done.stdout)["run_id"] == bad
    done = site.orch("resume", good, code=2)
    assert "nothing to resume" in done.stderr
    site.orch("report", bad)
