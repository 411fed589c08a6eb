"""What sites do that the others here do not: suspend, grace times, wrappers, closed partitions."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.slurm.conftest import FAULTY, image_of, opened
from tests.slurm.site import LOGIN, NODES, USER, Site, orch_words, slurm_site
from tests.slurm.test_faults import listens
from tests.slurm.test_run_slurm import PREEMPTED, SLOW, TWO, Started, await_requeue, comes_again, train
from tests.support.images import require_docker, run_program
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif("ORCH_SLURM_SUITE" not in os.environ, reason="needs ORCH_SLURM_SUITE (make test-all)")
# Rank 1 takes more memory than a job of 1000 MB has, and keeps it until Slurm has noticed.
HUNGRY = """
import time
import torch, torch.distributed as dist
dist.init_process_group()
dist.barrier()
if dist.get_rank() == 1:
    kept = torch.ones(1 << 29)
    time.sleep(5)
dist.barrier()
"""
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


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "torchrun"])
def test_preemption_with_a_grace_time_writes_a_checkpoint(ready: Site, launcher: str) -> None:
    """Use the default PreemptParameters: Slurm signals the steps, but not the batch script."""
    run = started_with_checkpoints(ready, "--slurm", "partition=grace", "--launcher", launcher)
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


GREETS = """
import os
import torch.distributed as dist
dist.init_process_group()
print("greeting:", os.environ["GREETING"])
"""


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "torchrun"])
def test_the_environment_of_setup_commands_reaches_all_ranks(ready: Site, launcher: str) -> None:
    (ready.home / "greets.py").write_text(GREETS)
    setup = ("--slurm", "setup=export GREETING='a b'", "--slurm", "setup=GREETING+=' c'")
    run = Started(ready, *TWO, *setup, "--launcher", launcher, script="greets.py")
    code, output = run.end()
    assert code == 0, output
    logs = [(run.folder / "ranks" / f"rank-{rank}.log").read_text() for rank in range(2)]
    assert all("greeting: a b c" in log for log in logs), logs


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


def test_a_partition_that_is_closed_to_the_user_is_named(ready: Site) -> None:
    ready.said("scontrol", "update", "partitionname=grace", "allowgroups=root", user="root")
    try:
        done = ready.orch("train", "faulty.py", *TWO, "--slurm", "partition=grace", seconds=60)
    finally:
        ready.said("scontrol", "update", "partitionname=grace", "allowgroups=ALL", user="root")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "permitted to use this partition" in done.stderr  # by sbatch, or of newer versions by squeue
    assert "--slurm partition=" in done.stderr
    assert ready.said("squeue", "--noheader", "--all") == ""


def test_a_job_whose_partition_was_closed_to_its_user_never_starts(ready: Site) -> None:
    run = Started(ready, *TWO, "--slurm", "partition=grace", "--slurm", "hold")
    wait_until(lambda: ready.said("squeue", "--noheader", "--format=%r") == "JobHeldUser", "that the job is held")
    job = ready.said("squeue", "--noheader", "--format=%i")
    ready.said("scontrol", "update", "partitionname=grace", "allowgroups=root", user="root")
    try:
        ready.on(LOGIN, "scontrol", "release", job)  # says that it cannot start
        code, output = run.end()
    finally:
        ready.said("scontrol", "update", "partitionname=grace", "allowgroups=ALL", user="root")
    assert code == 1, output
    assert "is not open to you" in output
    assert run.outcome()["state"] == "failed"


def test_stop_without_a_controller_ends_the_run(ready: Site) -> None:
    """Use settings of Slurm that name a port at which no controller listens."""
    run = Started(ready, *TWO, *SLOW)
    run.await_event("joined", 2)
    settings = (ready.etc / "slurm.conf").read_text()
    (ready.home / "away.conf").write_text(f"{settings}SlurmctldPort=9\n")
    away = ("env", f"SLURM_CONF=/home/{USER}/away.conf")
    done = ready.on(LOGIN, *away, *orch_words("stop", run.folder.name))
    assert done.returncode == 0, done.stdout + done.stderr
    code, output = run.end()
    assert code == 130, output
    assert run.outcome()["state"] == "stopped"
    wait_until(lambda: ready.said("squeue", "--noheader") == "", "that the job has ended")


def test_a_job_is_requeued_no_more_often_than_allowed(ready: Site) -> None:
    run = started_with_checkpoints(ready, "--slurm", "max-requeues=0")
    ready.said("scancel", "--batch", "--signal=TERM", run.job())
    code, output = run.end()
    assert code == 75, output
    assert "as often as --slurm max-requeues allows" in output
    assert ready.said("squeue", "--noheader") == ""


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


@contextmanager
def cut_off(site: Site, node: str, method: str) -> Iterator[None]:
    """Freeze a node, or take its network away: then it still sees the folder of the run, and its ranks continue."""
    container = site.container(node)
    if method == "frozen":
        cut, restore = ("docker", "pause", container), ("docker", "unpause", container)
    else:
        process = run_program("docker", "inspect", "--format={{.State.Pid}}", container).strip()
        link = ("nsenter", "--target", process, "--net", "ip", "link", "set", "eth0")
        cut, restore = (*link, "down"), (*link, "up")
    subprocess.run(cut, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(restore, check=True, capture_output=True)


def restarts_of(run: Started) -> int:
    path = run.folder / "slurm-job.json"
    return int(json.loads(path.read_text())["restarts"]) if path.exists() else -1


ONE_NODE = ("--on", "slurm", "--nodes", "1", "--ppn", "1", "--backend", "gloo", "--fresh")


@pytest.mark.parametrize("cut", ["frozen", "without-network"])
def test_a_node_that_comes_back_does_not_go_on_beside_the_new_start(ready: Site, cut: str) -> None:
    """Cut the first node off until Slurm has started the job again on another one."""
    run = Started(ready, *ONE_NODE, "--", "--seconds", "0.2", "--steps", "250")
    run.await_event("joined", 1)
    node = ready.said("squeue", "--noheader", "--format=%N")
    no_rank_left = lambda: ready.on(node, "pgrep", "-f", "faulty.py").stdout == ""  # noqa: E731
    with cut_off(ready, node, cut):
        comes_again(ready, run)
        wait_until(lambda: restarts_of(run) == 1, "the second start")
        if cut == "without-network":
            wait_until(no_rank_left, f"that no rank is left on {node}")
    wait_until(no_rank_left, f"that no rank is left on {node}")
    code, output = run.end()
    assert code == 0, output
    assert run.outcome()["state"] == "done"
    assert restarts_of(run) == 1


def test_a_run_that_ended_on_a_node_without_network_is_not_repeated(ready: Site) -> None:
    run = Started(ready, *ONE_NODE, "--", "--seconds", "0.2", "--steps", "25")
    run.await_event("joined", 1)
    node = ready.said("squeue", "--noheader", "--format=%N")
    with cut_off(ready, node, "without-network"):
        await_requeue(ready)
        job = ready.said("squeue", "--noheader", "--format=%i")
        ready.said("scontrol", "update", f"jobid={job}", "starttime=now+3")
        wait_until(lambda: ready.said("squeue", "--noheader") == "", "that the second start has ended")
    code, output = run.end()
    assert code == 0, output
    assert run.outcome()["state"] == "done"
    assert (run.folder / "events.jsonl").read_text().count('"event": "launched"') == 1


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


@pytest.fixture(scope="module")
def unusual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    require_docker()
    with slurm_site(opened(tmp_path_factory.mktemp("unusual")), image_of(), unusual=True) as site:
        (site.home / "faulty.py").write_bytes(FAULTY.read_bytes())
        (site.home / "hungry.py").write_text(HUNGRY)
        yield site


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "torchrun"])
def test_nodes_may_have_names_that_are_no_host_names(unusual: Site, launcher: str) -> None:
    result = train(unusual, *TWO, "--launcher", launcher, "--json", "--", "--steps", "3")
    assert (result["state"], result["ranks"]) == ("done", 2)
    layout = json.loads((unusual.home / "runs" / result["run_id"] / "layout.json").read_text())
    assert [node["name"] for node in layout["nodes"]] == ["beta1", "beta2"]


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "torchrun"])
def test_memory_that_runs_out_without_cgroups_is_named(unusual: Site, launcher: str) -> None:
    limit = ("--slurm", "mem=1000", "--slurm", "cpus-per-task=1")
    run = Started(unusual, *TWO, *limit, "--launcher", launcher, script="hungry.py")
    code, output = run.end()
    assert code == 1, output
    result = run.outcome()
    assert (result["state"], result["first_failure"]) == ("failed", None)
    assert result["problem"].startswith("it ran out of memory (--slurm mem=): slurmstepd-beta2"), output


def test_whole_nodes_come_with_their_memory(unusual: Site) -> None:
    run = Started(unusual, *TWO, script="hungry.py")  # takes 2 GB, of 4 GB
    code, output = run.end()
    assert code == 0, output


def test_a_cancelled_job_that_slurm_has_forgotten_is_unknown_without_accounting(unusual: Site) -> None:
    result = train(unusual, *TWO, "--detach", "--json", *SLOW)
    folder = unusual.home / "runs" / result["run_id"]
    events = folder / "events.jsonl"
    wait_until(lambda: events.exists() and events.read_text().count('"joined"') == 2, "both ranks")
    job = json.loads((folder / "plan.json").read_text())["location"]["job"]
    unusual.said("scancel", job)
    wait_until(lambda: unusual.on(LOGIN, "scontrol", "show", "job", job).returncode, "that Slurm has forgotten the job")
    done = unusual.orch("attach", result["run_id"])
    assert done.returncode not in (0, 3), done.stdout + done.stderr
    assert "cannot tell whether it was cancelled" in done.stdout, done.stdout + done.stderr
    assert "was lost" not in done.stdout
