"""Test `orch train --on slurm` on a real Slurm: commands, arrays, failures, preemption, and how jobs end."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.slurm import runs
from tests.slurm.conftest import FAULTY
from tests.slurm.site import LOGIN, USER, Site
from tests.support.files import write_program
from tests.support.projects import ARGUMENTS
from tests.support.waiting import wait_until

# Delays the end of `scontrol requeue`, so that Slurm ends the job while this command still runs.
SLOW_SCONTROL = """#!/bin/sh
/usr/bin/scontrol "$@"; code=$?
[ "$1" != requeue ] || sleep 3
exit $code
"""


def test_all_commands_work_for_a_run_of_a_project_with_packages(site: Site) -> None:
    """Train with torchrun, which starts its ranks without SSH between the nodes."""
    project = site.home / runs.PROJECT
    shutil.rmtree(project, ignore_errors=True)
    runs.write_project_with_packages(site.home, f"/home/{USER}", git=False)  # the hosts have no git
    done = site.orch(*runs.TRAIN_PROJECT, "--launcher", "torchrun", "--json", "--", *ARGUMENTS)
    result = json.loads(done.stdout)
    name, accounting = result["run_id"], result["accounting"]  # this Slurm has no accounting
    assert (result["state"], result["ranks"]) == ("done", 2)
    assert (accounting["source"], accounting["state"]) == ("scontrol", "COMPLETED")
    assert accounting["max_rss_bytes"] is None
    folder = site.home / "runs" / name
    layout = json.loads((folder / "layout.json").read_text())
    assert [(rank["node"], rank["cpus"]) for rank in layout["ranks"]] == [("n1", [0, 1]), ("n2", [0, 1])]
    row = runs.find_row(site, name)
    assert (row["state"], row["nodes"]) == ("done", ["n1", "n2"])
    runs.check_project_logs(site.orch("logs", name).stdout)
    runs.check_project_outputs(folder / "project")
    assert json.loads((project / "conf/small.json").read_text()) == {"steps": 3}
    fetched = json.loads(site.orch("fetch", name, "--json").stdout)
    assert (fetched["folder"], fetched["files"]) == (f"/home/{USER}/runs/{name}/project", len(runs.PROJECT_OUTPUTS))
    site.orch("fetch", name, "--code")
    assert json.loads((folder / "code/conf/small.json").read_text()) == {"steps": 3}
    for command in (("attach", name), ("stop", name), ("clean", "--inventory", "slurm")):
        site.orch(*command)


def test_bench_measures_the_nodes_of_jobs(site: Site) -> None:
    done = site.orch("bench", *runs.PROJECT_ON_TWO_NODES, "--json")
    measured = json.loads(done.stdout)
    assert [node["node"] for node in measured["nodes"]] == ["n1", "n2"]
    assert [(link["source"], link["gbit"] > 0) for link in measured["links"]] == [("n1", True), ("n2", True)]
    assert measured["runs"][0]["samples"] > 0


def test_sbatch_accepts_the_script_of_a_dry_run_which_names_the_first_rank_that_fails(site: Site) -> None:
    """Use mpirun, which starts its ranks without SSH between the nodes."""
    options = (*runs.TWO_NODES, "--launcher", "mpirun", "--dry-run", "-o", "sh")
    script = site.orch("train", "faulty.py", *options, "--", "--fault", "exception").stdout
    (site.home / "job.sh").write_text(script)
    done = site.run_on(LOGIN, "sbatch", "--wait", "job.sh")
    assert done.returncode == 1, done.stdout + done.stderr
    (run_dir,) = [line.split()[-1] for line in script.splitlines() if line.startswith("mkdir")]
    outcome = json.loads((site.home / Path(run_dir).relative_to(f"/home/{USER}") / "outcome.json").read_text())
    failure = outcome["first_failure"]
    assert (outcome["state"], failure["rank"], failure["node"]) == ("failed", 1, "n2")
    assert "ValueError: boom" in failure["text"]


def test_a_job_that_can_never_start_fails_at_once(site: Site) -> None:
    """Let Slurm refuse one job, and let orch cancel another that Slurm has accepted, which has an outcome."""
    for option, message, outcome_count in (
        ("partition=nosuch", "invalid partition specified: nosuch", 0),
        ("time=9999", "so orch cancelled it: its partition", 1),
    ):
        outcomes = set((site.home / "runs").glob("*/outcome.json"))
        assert message in site.orch("train", "faulty.py", *runs.TWO_NODES, "--slurm", option, code=1).stderr
        site.wait_for_no_jobs()
        assert len(set((site.home / "runs").glob("*/outcome.json")) - outcomes) == outcome_count


def test_a_job_that_somebody_cancels_counts_as_cancelled_and_does_not_come_back(site: Site) -> None:
    """Use a script that writes a checkpoint when Slurm signals it."""
    run = runs.start_checkpointing_run(site)
    site.stdout_of("scancel", run.job_id())
    output = run.wait(code=130)
    outcome = run.read_outcome()
    assert outcome["state"] == "stopped"
    assert outcome["problem"].startswith(f"job {run.job_id()}: the job was cancelled"), output
    site.wait_for_no_jobs()
    site.orch("train", "faulty.py", *runs.TWO_NODES, "--slurm", "hold", "--detach")
    for state in ("waiting", "stopped"):
        listed = json.loads(site.orch("runs", "--inventory", "slurm", "--json").stdout)["runs"]
        assert max(listed, key=lambda listed_run: listed_run["id"])["state"] == state
        site.stdout_of("scancel", "--user", USER)


def test_a_job_that_slurm_signals_writes_a_checkpoint_and_continues(site: Site) -> None:
    """Signal the batch script, as Slurm does before a time limit."""
    write_program(site.home / "bin" / "scontrol", SLOW_SCONTROL)
    run = runs.start_checkpointing_run(site, prefix=("env", f"PATH=/home/{USER}/bin:/usr/bin:/bin"))
    site.stdout_of("scancel", "--batch", "--signal=TERM", run.job_id())
    runs.start_requeued_job(run)
    run.wait()
    assert run.count_restarts() == 1
    first_outcome = json.loads((run.folder / "outcome-0.json").read_text())
    assert first_outcome["problem"].startswith("checkpoint at step")
    assert (first_outcome["attempts"], run.read_outcome()["attempts"]) == (1, 2)


def test_a_job_survives_a_busy_controller_and_its_restart_and_starts_again_if_slurm_preempts_it(site: Site) -> None:
    """Submit it to a stopped controller, which accepts it late; preempt it without time to write a checkpoint."""
    site.stdout_of("pkill", "-STOP", "-x", "slurmctld", user="root")
    try:
        run = runs.BackgroundRun(site, *runs.ONE_NODE, script=runs.UNTIL_FINISH)
        for code, moment in ((0, "the search for the job"), (1, "its end without a response")):
            wait_until(lambda code=code: site.run_on(LOGIN, "pgrep", "-x", "squeue").returncode == code, moment)
    finally:
        site.stdout_of("pkill", "-CONT", "-x", "slurmctld", user="root")
    run.wait_for_event("joined")
    first_process = site.stdout_of("pgrep", "-x", "slurmctld", user="root")
    site.stdout_of("pkill", "-TERM", "-x", "slurmctld", user="root")

    def has_restarted() -> bool:
        process = site.run_on(LOGIN, "pgrep", "-x", "slurmctld", user="root").stdout.strip()
        return process not in ("", first_process) and site.run_on(LOGIN, "squeue").returncode == 0

    wait_until(has_restarted, "a new controller")
    assert runs.find_row(site, run.folder.name)["state"] == "running"
    site.stdout_of("sbatch", "--partition=urgent", "--nodes=3", "--exclusive", "--wrap", "true")
    runs.wait_for_requeue(run)
    assert runs.find_row(site, run.folder.name)["state"] == "waiting"
    run.finish()
    runs.release_requeued_job(run)
    output = run.wait()
    assert "is back in the queue" in output
    assert (run.count_restarts(), runs.count_events(run.folder, "launched")) == (1, 2), output


def test_a_spare_node_replaces_one_that_dies(site: Site) -> None:
    run = runs.BackgroundRun(
        site, *runs.TWO_NODES, "--max-restarts", "1", "--spare-nodes", "1", script=runs.UNTIL_FINISH
    )
    run.wait_for_event("joined", 2)
    subprocess.run(["docker", "kill", site.container("n2")], check=True, capture_output=True)
    run.finish()
    assert "n3 replaces n2" in run.wait()
    assert run.read_outcome()["attempts"] == 2


# Arrays.


def test_an_array_resumes_only_the_run_that_failed(site: Site) -> None:
    """Let argparse of the script refuse the second value; each run has its own copy of the project."""
    (site.home / "sweep").mkdir(exist_ok=True)
    shutil.copy(FAULTY, site.home / "sweep")
    options = (*runs.ONE_NODE, "--project=sweep", "--slurm", "cpus-per-task=1", "--array", "steps=8,none%1", "--json")
    done = site.orch("train", "sweep/faulty.py", *options, code=1)
    members = json.loads(done.stdout)["runs"]
    assert [member["state"] for member in members] == ["done", "failed"]
    good, bad = (member["run_id"] for member in members)
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
    assert [runs.find_row(site, name)["state"] for name in (good, bad)] == ["done", "failed"]
    done = site.orch("resume", array, "--json", code=1)
    assert json.loads(done.stdout)["run_id"] == bad
    done = site.orch("resume", good, code=2)
    assert "nothing to resume" in done.stderr
    site.orch("report", bad)
