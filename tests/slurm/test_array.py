"""`--array`: several runs as one job array of a real Slurm."""

from __future__ import annotations

import json

from tests.slurm.site import Site
from tests.slurm.test_run_slurm import TWO


def test_an_array_with_one_run_that_fails(ready: Site) -> None:
    done = ready.orch(
        "train",
        "faulty.py",
        *TWO,
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
    told = json.loads(done.stdout)
    assert [one["state"] for one in told["runs"]] == ["done", "failed"]
    good, bad = (one["run_id"] for one in told["runs"])
    assert good.removesuffix("-0") == bad.removesuffix("-1")
    assert f"{bad} fault=exception (2 of 2): failed: rank 1 on n2" in done.stderr
    jobs = [
        json.loads((ready.home / "runs" / name / "plan.json").read_text())["location"]["job"] for name in (good, bad)
    ]
    assert [job.partition("_")[2] for job in jobs] == ["0", "1"]
    ends = [json.loads((ready.home / "runs" / name / "outcome.json").read_text()) for name in (good, bad)]
    assert ends[0]["ended"] <= ends[1]["started"], "one at once"
    rows = json.loads(ready.orch("runs", "--inventory", "slurm", "--json").stdout)["runs"]
    assert [(one["id"], one["state"]) for one in rows[-2:]] == [(good, "done"), (bad, "failed")]
    # The second time only what has failed runs again.
    command = ("train", "faulty.py", *(word for word in TWO if word != "--fresh"), "--slurm", "cpus-per-task=1")
    arguments = ("--array", "fault=none,exception", "--json", "--", "--steps", "8")
    done = ready.orch(*command, *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"done already: {good} fault=none" in done.stderr
    assert [one["state"] for one in json.loads(done.stdout)["runs"]] == ["failed"]
    done = ready.orch(*command, "--array", "fault=none", "--", "--steps", "8")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "All runs of this array are done already (1)" in done.stderr
    made = ready.orch("report", good, bad)
    assert made.returncode == 0, made.stdout + made.stderr
