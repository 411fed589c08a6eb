"""Test `orch train --on slurm` on a real Slurm: commands, failures, preemption, and how jobs end."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.slurm.runs import (
    CHECKPOINTING,
    LONG_RUN,
    PROJECT_ON_TWO_NODES,
    TWO_NODES,
    UNTIL_FINISH,
    BackgroundRun,
    find_row,
    release_requeued_job,
    start_requeued_job,
    train,
    wait_for_requeue,
    wait_until_listening,
)
from tests.slurm.site import LOGIN, USER, Site
from tests.support.waiting import wait_until

# Delays the end of `scontrol requeue`, so that Slurm ends the job while this command still runs.
SLOW_SCONTROL = """#!/bin/sh
/usr/bin/scontrol "$@"; code=$?
[ "$1" != requeue ] || sleep 3
exit $code
"""


def test_all_commands_work_for_a_run(site: Site) -> None:
    result = train(site, *TWO_NODES, "--json", "--", "--steps", "5")
    assert (result["state"], result["ranks"]) == ("done", 2)
    accounting = result["accounting"]  # this Slurm has no accounting
    assert (accounting["source"], accounting["state"]) == ("scontrol", "COMPLETED")
    assert accounting["max_rss_bytes"] is None
    folder = site.home / "runs" / result["run_id"]
    layout = json.loads((folder / "layout.json").read_text())
    assert [(rank["node"], rank["cpus"]) for rank in layout["ranks"]] == [("n1", [0, 1]), ("n2", [0, 1])]
    row = find_row(site, result["run_id"])
    assert (row["state"], row["nodes"]) == ("done", ["n1", "n2"])
    assert "[1 n2] finished" in site.orch("logs", result["run_id"]).stdout
    assert site.orch("attach", result["run_id"]).returncode == 0
    assert site.orch("stop", result["run_id"]).returncode == 0
    assert site.orch("clean", "--inventory", "slurm").returncode == 0


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_launchers_need_no_ssh_between_nodes(site: Site, launcher: str) -> None:
    result = train(site, *TWO_NODES, "--launcher", launcher, "--json", "--", "--steps", "3")
    assert result["state"] == "done"


def test_bench_measures_the_nodes_of_jobs(site: Site) -> None:
    done = site.orch("bench", *PROJECT_ON_TWO_NODES, "--json")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert [node["node"] for node in measured["nodes"]] == ["n1", "n2"]
    assert [(link["source"], link["gbit"] > 0) for link in measured["links"]] == [("n1", True), ("n2", True)]
    assert measured["runs"][0]["samples"] > 0


def test_sbatch_accepts_the_script_of_a_dry_run(site: Site) -> None:
    script = site.orch("train", "faulty.py", *TWO_NODES, "--dry-run", "-o", "sh", "--", "--steps", "3").stdout
    (site.home / "job.sh").write_text(script)
    site.stdout_of("sbatch", "--wait", "job.sh")
    (run_dir,) = [line.split()[-1] for line in script.splitlines() if line.startswith("mkdir")]
    folder = site.home / Path(run_dir).relative_to(f"/home/{USER}")
    assert json.loads((folder / "outcome.json").read_text())["state"] == "done"


def test_the_first_rank_that_fails_is_named(site: Site) -> None:
    failure = train(site, *TWO_NODES, "--json", "--", "--fault", "exception", code=1)["failure"]
    assert (failure["rank"], failure["node"]) == (1, "n2")
    assert "ValueError: boom" in failure["text"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            ("--nodes", "9"),
            "does not have the requested resources|node configuration is not available",
            id="too-many-nodes",
        ),
        pytest.param(("--slurm", "partition=nosuch"), "invalid partition specified: nosuch", id="unknown-partition"),
        pytest.param(("--slurm", "time=9999"), "so orch cancelled it: its partition", id="time-limit"),
        pytest.param(("--slurm", "constraint=gold"), "Invalid feature specification", id="unknown-feature"),
    ],
)
def test_a_job_that_can_never_start_fails_at_once(site: Site, options: tuple[str, ...], message: str) -> None:
    outcomes = set((site.home / "runs").glob("*/outcome.json"))
    done = site.orch("train", "faulty.py", *TWO_NODES, *options)
    assert done.returncode == 1
    assert re.search(message, done.stderr)
    site.wait_for_no_jobs()
    new_outcomes = set((site.home / "runs").glob("*/outcome.json")) - outcomes
    assert len(new_outcomes) == ("so orch cancelled it" in done.stderr), "Slurm has refused the others"


def test_a_job_that_somebody_cancels_counts_as_cancelled(site: Site) -> None:
    run = BackgroundRun(site, *TWO_NODES, *LONG_RUN)
    run.wait_for_event("joined", 2)
    site.stdout_of("scancel", run.job_id())
    code, output = run.wait()
    assert run.read_outcome()["problem"].startswith(f"job {run.job_id()}: the job was cancelled"), output
    assert code == 130, output
    site.wait_for_no_jobs()


def test_stop_ends_the_job_and_reports_it(site: Site) -> None:
    run = BackgroundRun(site, *TWO_NODES, *LONG_RUN)
    run.wait_for_event("joined", 2)
    done = site.orch("stop", run.folder.name)
    assert done.returncode == 0, done.stdout + done.stderr
    code, output = run.wait()
    assert code == 130, output
    site.wait_for_no_jobs()
    assert set(run.read_outcome()["nodes"]) == {"n1", "n2"}


def test_a_job_that_slurm_signals_writes_a_checkpoint_and_continues(site: Site) -> None:
    """Signal the batch script, as Slurm does before a time limit."""
    path = site.home / "bin" / "scontrol"
    path.parent.mkdir(exist_ok=True)
    path.write_text(SLOW_SCONTROL)
    path.chmod(0o755)
    environment = ("env", f"PATH=/home/{USER}/bin:/usr/bin:/bin")
    run = BackgroundRun(site, *TWO_NODES, "--", "1", script=CHECKPOINTING, prefix=environment)
    wait_until_listening(run)
    site.stdout_of("scancel", "--batch", "--signal=TERM", run.job_id())
    start_requeued_job(run)
    code, output = run.wait()
    assert code == 0, output
    assert run.count_restarts() == 1
    first_outcome = json.loads((run.folder / "outcome-0.json").read_text())
    assert first_outcome["problem"].startswith("checkpoint at step")
    assert (first_outcome["attempts"], run.read_outcome()["attempts"]) == (1, 2)


def test_a_job_that_slurm_preempts_starts_again(site: Site) -> None:
    """Preempt it without a grace time, so that it has no time to write a checkpoint."""
    run = BackgroundRun(site, *TWO_NODES, script=UNTIL_FINISH)
    run.wait_for_event("joined", 2)
    site.stdout_of("sbatch", "--partition=urgent", "--nodes=3", "--exclusive", "--wrap", "true")
    wait_for_requeue(run)
    assert find_row(site, run.folder.name)["state"] == "waiting"
    run.finish()
    release_requeued_job(run)
    code, output = run.wait()
    assert code == 0, output
    assert "is back in the queue" in output


def test_a_restart_of_the_controller_ends_no_run(site: Site) -> None:
    run = BackgroundRun(site, *TWO_NODES, script=UNTIL_FINISH)
    run.wait_for_event("joined", 2)
    first_process = site.stdout_of("pgrep", "-x", "slurmctld", user="root")
    site.stdout_of("pkill", "-TERM", "-x", "slurmctld", user="root")

    def has_restarted() -> bool:
        process = site.run_on(LOGIN, "pgrep", "-x", "slurmctld", user="root").stdout.strip()
        return process not in ("", first_process) and site.run_on(LOGIN, "squeue").returncode == 0

    wait_until(has_restarted, "a new controller")
    run.finish()
    code, output = run.wait()
    assert code == 0, output


def test_a_spare_node_replaces_one_that_dies(site: Site) -> None:
    run = BackgroundRun(site, *TWO_NODES, "--max-restarts", "1", "--spare-nodes", "1", script=UNTIL_FINISH)
    run.wait_for_event("joined", 2)
    subprocess.run(["docker", "kill", site.container("n2")], check=True, capture_output=True)
    run.finish()
    code, output = run.wait()
    assert code == 0, output
    assert "n3 replaces n2" in output
    assert run.read_outcome()["attempts"] == 2
