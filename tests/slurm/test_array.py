"""Test `--array`: several runs as one job array of a real Slurm."""

from __future__ import annotations

import json

from tests.slurm.runs import TWO_NODES, find_row
from tests.slurm.site import Site


def test_an_array_resumes_only_the_run_that_failed(site: Site) -> None:
    done = site.orch(
        "train",
        "faulty.py",
        *TWO_NODES,
        "--slurm",
        "cpus-per-task=1",
        "--array",
        "fault=none,exception%1",
        "--json",
        "--",
        "--steps",
        "8",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [run["state"] for run in runs] == ["done", "failed"]
    good, bad = (run["run_id"] for run in runs)
    assert good.removesuffix("-0") == bad.removesuffix("-1")
    assert f"{bad} fault=exception (2 of 2): failed: faulty.py, line" in done.stderr
    jobs = [
        json.loads((site.home / "runs" / name / "plan.json").read_text())["location"]["job"] for name in (good, bad)
    ]
    assert [job.partition("_")[2] for job in jobs] == ["0", "1"]
    outcomes = [json.loads((site.home / "runs" / name / "outcome.json").read_text()) for name in (good, bad)]
    assert outcomes[0]["ended"] <= outcomes[1]["started"], "one run at a time"
    assert [find_row(site, name)["state"] for name in (good, bad)] == ["done", "failed"]
    array = good.removesuffix("-0")
    assert f"resume: orch resume {array}" in done.stderr
    done = site.orch("resume", array, "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    assert [run["run_id"] for run in [json.loads(done.stdout)]] == [bad]
    done = site.orch("resume", good)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "nothing to resume" in done.stderr
    done = site.orch("report", bad)
    assert done.returncode == 0, done.stdout + done.stderr
