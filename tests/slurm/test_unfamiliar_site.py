"""What sites do that the others here do not: suspend, grace times, wrappers, closed partitions."""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest

from tests.slurm.site import NODES, USER, Site
from tests.slurm.test_faults import listens
from tests.slurm.test_run_slurm import PREEMPTED, SLOW, TWO, Started, comes_again, train
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif("ORCH_SLURM_SUITE" not in os.environ, reason="needs ORCH_SLURM_SUITE (make test-all)")
# Prints what wrappers of sites print, and calls the real sbatch.
WRAPPER = '#!/bin/sh\n/usr/bin/sbatch "$@"; code=$?\necho "You have 340 hours left."\nexit $code\n'


def started_with_checkpoints(site: Site, *arguments: str) -> Started:
    """Start a run whose ranks write a checkpoint when they are preempted, and await a step."""
    (site.home / "room.py").write_text(PREEMPTED)
    (site.home / "checkpoint").unlink(missing_ok=True)
    run = Started(site, *TWO, *arguments, script="room.py")
    run.await_event("joined", 2)
    wait_until(lambda: listens(run, 1), "a step")
    return run


def test_a_suspended_job_continues(ready: Site) -> None:
    run = Started(ready, *TWO, "--", "--seconds", "0.2", "--steps", "60")
    run.await_event("joined", 2)
    ready.said("scontrol", "suspend", run.job(), user="root")
    time.sleep(35)  # longer than supervisor and agents wait for each other
    row = json.loads(ready.orch("runs", "--inventory", "slurm", "--json").stdout)["runs"][-1]
    assert row["state"] == "running"
    ready.said("scontrol", "resume", run.job(), user="root")
    code, output = run.end()
    assert code == 0, output
    assert "is suspended" in output
    assert "back in the queue" not in output


def test_preemption_with_a_grace_time_writes_a_checkpoint(ready: Site) -> None:
    """Use the default PreemptParameters: Slurm signals the steps, but not the batch script."""
    run = started_with_checkpoints(ready, "--slurm", "partition=grace")
    ready.said("sbatch", "--partition=urgent", "--nodes=3", "--exclusive", "--wrap", "true")
    comes_again(ready, run)
    result = json.loads((run.folder / "outcome-0.json").read_text())
    assert result["problem"].startswith("checkpoint at step"), result
    code, output = run.end()
    assert code == 0, output


def test_a_cancelled_job_does_not_come_back_by_itself(ready: Site) -> None:
    run = started_with_checkpoints(ready)
    ready.said("scancel", run.job())
    code, output = run.end()
    assert code == 130, output
    assert run.outcome()["state"] == "stopped"
    assert ready.said("squeue", "--noheader") == ""


def test_a_wrapper_around_sbatch_and_variables_of_an_interactive_job(ready: Site) -> None:
    wrapper = ready.home / "wrapped" / "sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(WRAPPER)
    wrapper.chmod(0o755)
    environment = (
        "env",
        f"PATH=/home/{USER}/wrapped:/usr/bin:/bin",
        "SLURM_MEM_PER_CPU=100",
        "SLURM_MEM_PER_NODE=100",
        "SLURM_JOB_ID=1",
    )
    run = Started(ready, *TWO, "--", "--steps", "3", before=environment)
    code, output = run.end()
    assert code == 0, output


def test_a_job_in_a_partition_that_was_closed_to_its_user_waits(ready: Site) -> None:
    result = train(ready, *TWO, "--slurm", "partition=grace", "--slurm", "hold", "--detach", "--json")
    ready.said("scontrol", "update", "partitionname=grace", "allowgroups=root", user="root")
    try:
        rows = json.loads(ready.orch("runs", "--inventory", "slurm", "--json").stdout)["runs"]
        (state,) = [row["state"] for row in rows if row["id"] == result["run_id"]]
    finally:
        ready.said("scontrol", "update", "partitionname=grace", "allowgroups=ALL", user="root")
    assert state == "waiting"
    assert ready.orch("stop", result["run_id"]).returncode == 0


def test_a_runs_folder_that_the_nodes_do_not_share_is_named(ready: Site) -> None:
    done = ready.orch("train", "faulty.py", *TWO, "--runs-dir", "/tmp/of-login", seconds=180)
    assert done.returncode == 1, done.stdout + done.stderr
    output = done.stdout + done.stderr
    assert "share" in output, output
    assert "--runs-dir" in output, output


def test_a_runs_folder_that_a_node_cannot_write_is_named(ready: Site) -> None:
    folder = "/srv/runs"  # of the user on the login node, of root on the nodes
    ready.said("install", "--directory", f"--owner={USER}", folder, user="root")
    for node in NODES:
        ready.on(node, "install", "--directory", folder, user="root")
    done = ready.orch("train", "faulty.py", *TWO, "--runs-dir", folder, seconds=180)
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert "may not write to it" in output, output


def test_more_ranks_than_a_node_has_cores_are_refused_with_the_way_out(ready: Site) -> None:
    done = ready.orch("train", "faulty.py", *TWO, "--ppn", "99", seconds=60)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "(--ppn" in done.stderr, done.stderr
    assert ready.said("squeue", "--noheader") == ""


def test_a_node_that_comes_back_does_not_go_on_beside_the_new_start(ready: Site) -> None:
    """Freeze the first node until Slurm has started the job again on another one."""
    request = ("--on", "slurm", "--nodes", "1", "--ppn", "1", "--backend", "gloo", "--fresh")
    run = Started(ready, *request, "--", "--seconds", "0.2", "--steps", "100")
    run.await_event("joined", 1)
    node = ready.said("squeue", "--noheader", "--format=%N")
    subprocess.run(["docker", "pause", ready.container(node)], check=True, capture_output=True)
    try:
        comes_again(ready, run)
        wait_until(
            lambda: (
                (run.folder / "slurm-job.json").exists()
                and json.loads((run.folder / "slurm-job.json").read_text())["restarts"] == 1
            ),
            "the second start",
        )
    finally:
        subprocess.run(["docker", "unpause", ready.container(node)], check=True)
    wait_until(lambda: ready.on(node, "pgrep", "-f", "faulty.py").stdout == "", f"that no rank is left on {node}")
    code, output = run.end()
    assert code == 0, output
    assert run.outcome()["state"] == "done"
    assert json.loads((run.folder / "slurm-job.json").read_text())["restarts"] == 1


def test_registrations_of_killed_ranks_are_gone_after_the_next_run(ready: Site) -> None:
    run = Started(ready, *TWO, *SLOW)
    run.await_event("joined", 2)
    stale = "/dev/shm/__KMP_REGISTERED_LIB_999999_1500"  # as a killed rank leaves it
    ready.on("n1", "touch", stale)
    ready.said("scancel", "--full", "--signal=KILL", run.job())
    assert run.end()[0] != 0
    ready.await_idle()
    train(ready, *TWO, "--", "--steps", "3")
    segments = ready.on("n1", "find", "/dev/shm", "-name", "__KMP_REGISTERED_LIB_*").stdout
    assert segments == "", segments
