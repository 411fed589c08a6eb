"""Test what some sites do: suspend jobs, give grace times, wrap sbatch, close partitions, lose nodes, end long jobs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.slurm.conftest import prepare, start_site
from tests.slurm.runs import (
    CHECKPOINTING,
    HUNGRY_SCRIPT,
    LONG_RUN,
    ONE_NODE,
    TWO_NODES,
    UNTIL_FINISH,
    BackgroundRun,
    cancel_until_forgotten,
    count_events,
    find_row,
    release_requeued_job,
    start_checkpointing_run,
    start_requeued_job,
    wait_for_requeue,
)
from tests.slurm.site import LOGIN, NODES, USER, Site, orch_command
from tests.support.images import run_program
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif("ORCH_SLURM_SUITE" not in os.environ, reason="needs ORCH_SLURM_SUITE (make test-all)")
# Calls the real sbatch, and prints a line as wrappers of sites do.
SBATCH_WRAPPER = '#!/bin/sh\n/usr/bin/sbatch "$@"; code=$?\necho "You have 340 hours left."\nexit $code\n'
GREETING_SCRIPT = """
import os
import torch.distributed as dist
dist.init_process_group()
print("greeting:", os.environ["GREETING"])
"""


@pytest.fixture(scope="module")
def session_unusual_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from start_site(tmp_path_factory, "unusual", unusual=True)


@pytest.fixture
def unusual_site(session_unusual_site: Site) -> Site:
    """Return a Slurm with the settings UNUSUAL, and without jobs."""
    (session_unusual_site.home / "hungry.py").write_text(HUNGRY_SCRIPT)
    return prepare(session_unusual_site)


@contextmanager
def closed_partition(site: Site) -> Iterator[None]:
    """Close the partition `grace` to the user's groups."""
    update = ("scontrol", "update", "partitionname=grace")
    site.stdout_of(*update, "allowgroups=root", user="root")
    try:
        yield
    finally:
        site.stdout_of(*update, "allowgroups=ALL", user="root")


def test_a_node_that_dies_without_a_spare_is_named(site: Site) -> None:
    run = BackgroundRun(site, *TWO_NODES, *LONG_RUN)
    run.wait_for_event("joined", 2)
    subprocess.run(["docker", "kill", site.container("n2")], check=True, capture_output=True)
    output = run.wait(code=1)
    assert "n2" in output
    assert run.read_outcome()["state"] == "failed"


def test_a_job_at_its_time_limit_writes_a_checkpoint_and_continues(site: Site) -> None:
    """Use a limit of three minutes: Slurm signals the job 50 to 80 s earlier, when the ranks have certainly joined."""
    time_limit = ("--slurm", "time=3", "--slurm", "signal=B:TERM@50")
    run = BackgroundRun(site, *TWO_NODES, *time_limit, "--", "1", script=CHECKPOINTING)
    run.wait_for_event("joined", 2)
    start_requeued_job(run, seconds=240)
    first_outcome = json.loads((run.folder / "outcome-0.json").read_text())
    assert first_outcome["problem"].startswith("checkpoint at step")
    site.stdout_of("scontrol", "update", f"jobid={run.job_id()}", "timelimit=10", user="root")
    run.wait()


def test_a_suspended_job_continues(site: Site) -> None:
    run = BackgroundRun(site, *TWO_NODES, script=UNTIL_FINISH)
    run.wait_for_event("joined", 2)
    site.stdout_of("scontrol", "suspend", run.job_id(), user="root")
    time.sleep(35)  # longer than supervisor and agents wait for each other
    assert find_row(site, run.folder.name)["state"] == "running"
    site.stdout_of("scontrol", "resume", run.job_id(), user="root")
    run.finish()
    output = run.wait()
    assert "is suspended" in output
    assert "back in the queue" not in output


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "torchrun"])
def test_preemption_with_a_grace_time_writes_a_checkpoint(site: Site, launcher: str) -> None:
    """Use the default PreemptParameters: Slurm signals the steps, but not the batch script."""
    run = start_checkpointing_run(site, "--slurm", "partition=grace", "--launcher", launcher)
    site.stdout_of("sbatch", "--partition=urgent", "--nodes=3", "--exclusive", "--wrap", "true")
    start_requeued_job(run)
    result = json.loads((run.folder / "outcome-0.json").read_text())
    assert result["problem"].startswith("checkpoint at step"), result
    run.wait()


def test_a_cancelled_job_does_not_come_back_by_itself(site: Site) -> None:
    run = start_checkpointing_run(site)
    site.stdout_of("scancel", run.job_id())
    run.wait(code=130)
    assert run.read_outcome()["state"] == "stopped"
    site.wait_for_no_jobs()


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "torchrun"])
def test_ranks_get_the_environment_of_setup_commands_and_not_that_of_another_job(site: Site, launcher: str) -> None:
    """Submit with a wrapper around sbatch."""
    (site.home / "greeting.py").write_text(GREETING_SCRIPT)
    wrapper = site.home / "wrapped" / "sbatch"
    wrapper.parent.mkdir(exist_ok=True)
    wrapper.write_text(SBATCH_WRAPPER)
    wrapper.chmod(0o755)
    other_job = ("SLURM_MEM_PER_CPU=100", "SLURM_MEM_PER_NODE=100", "SLURM_JOB_ID=1")
    environment = ("env", f"PATH=/home/{USER}/wrapped:/usr/bin:/bin", *other_job)
    options = (
        *("--slurm", "setup=export GREETING='a b'", "--slurm", "setup=GREETING+=' c'"),
        *("--launcher", launcher),
    )
    run = BackgroundRun(site, *TWO_NODES, *options, script="greeting.py", prefix=environment)
    run.wait()
    logs = [(run.folder / "ranks" / f"rank-{rank}.log").read_text() for rank in range(2)]
    assert all("greeting: a b c" in log for log in logs), logs


def test_a_partition_that_is_closed_to_the_user_is_named(site: Site) -> None:
    with closed_partition(site):
        done = site.orch("train", "faulty.py", *TWO_NODES, "--slurm", "partition=grace", code=1)
    assert "permitted to use this partition" in done.stderr  # from sbatch, or from squeue of newer versions
    assert "--slurm partition=" in done.stderr
    site.wait_for_no_jobs()


def test_a_job_whose_partition_was_closed_to_its_user_never_starts(site: Site) -> None:
    run = BackgroundRun(site, *TWO_NODES, "--slurm", "partition=grace", "--slurm", "hold")
    wait_until(lambda: site.stdout_of("squeue", "--noheader", "--format=%r") == "JobHeldUser", "that the job is held")
    job = site.stdout_of("squeue", "--noheader", "--format=%i")
    with closed_partition(site):
        site.run_on(LOGIN, "scontrol", "release", job)  # fails, as the job cannot start
        output = run.wait(code=1)
    assert "is not open to you" in output
    assert run.read_outcome()["state"] == "failed"


def test_stop_without_a_controller_ends_the_run(site: Site) -> None:
    """Use settings of Slurm that name a port at which no controller listens."""
    run = BackgroundRun(site, *TWO_NODES, *LONG_RUN)
    run.wait_for_event("joined", 2)
    settings = (site.etc / "slurm.conf").read_text()
    (site.home / "wrong-port.conf").write_text(f"{settings}SlurmctldPort=9\n")
    environment = ("env", f"SLURM_CONF=/home/{USER}/wrong-port.conf")
    done = site.run_on(LOGIN, *environment, *orch_command("stop", run.folder.name))
    assert done.returncode == 0, done.stdout + done.stderr
    run.wait(code=130)
    assert run.read_outcome()["state"] == "stopped"
    site.wait_for_no_jobs()


def test_a_job_is_requeued_no_more_often_than_allowed(site: Site) -> None:
    run = start_checkpointing_run(site, "--slurm", "max-requeues=0")
    site.stdout_of("scancel", "--batch", "--signal=TERM", run.job_id())
    output = run.wait(code=75)
    assert "as often as --slurm max-requeues allows" in output
    site.wait_for_no_jobs()


def test_a_runs_folder_that_the_nodes_do_not_share_is_named(site: Site) -> None:
    done = site.orch("train", "faulty.py", *TWO_NODES, "--runs-dir", "/tmp/of-login", code=1)
    output = done.stdout + done.stderr
    assert "share" in output, output
    assert "--runs-dir" in output, output


def test_a_runs_folder_that_a_node_cannot_write_is_named(site: Site) -> None:
    folder = "/srv/runs"  # of the user on the login node, of root on the nodes
    site.stdout_of("install", "--directory", f"--owner={USER}", folder, user="root")
    for node in NODES:
        site.run_on(node, "install", "--directory", folder, user="root")
    done = site.orch("train", "faulty.py", *TWO_NODES, "--runs-dir", folder, code=1)
    output = done.stdout + done.stderr
    assert "may not write to it" in output, output


@contextmanager
def cut_off(site: Site, node: str, method: str) -> Iterator[None]:
    """Freeze a node, or cut its network: then it still sees the folder of the run, and its ranks continue."""
    container = site.container(node)
    cut: tuple[str, ...] = ("docker", "pause", container)
    restore: tuple[str, ...] = ("docker", "unpause", container)
    if method == "without-network":
        process = run_program("docker", "inspect", "--format={{.State.Pid}}", container).strip()
        link = ("nsenter", "--target", process, "--net", "ip", "link", "set", "eth0")
        cut, restore = (*link, "down"), (*link, "up")
    subprocess.run(cut, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(restore, check=True, capture_output=True)


@pytest.mark.parametrize("cut", ["frozen", "without-network"])
def test_a_node_that_comes_back_ends_its_ranks_after_a_new_start(site: Site, cut: str) -> None:
    """Cut the first node off until Slurm has started the job again on another one."""
    run = BackgroundRun(site, *ONE_NODE, script=UNTIL_FINISH)
    run.wait_for_event("joined")
    node = site.stdout_of("squeue", "--noheader", "--format=%N")
    with cut_off(site, node, cut):
        start_requeued_job(run)
        wait_until(lambda: run.count_restarts() == 1, "the second start")
        if cut == "without-network":
            site.wait_until_ended(UNTIL_FINISH, node)
    site.wait_until_ended(UNTIL_FINISH, node)
    run.finish()
    run.wait()
    assert run.read_outcome()["state"] == "done"
    assert run.count_restarts() == 1


def test_a_run_that_ended_on_a_node_without_network_is_not_repeated(site: Site) -> None:
    run = BackgroundRun(site, *ONE_NODE, script=UNTIL_FINISH)
    run.wait_for_event("joined")
    node = site.stdout_of("squeue", "--noheader", "--format=%N")
    with cut_off(site, node, "without-network"):
        run.finish()
        wait_until((run.folder / "outcome.json").exists, "the end of the run on the node without network")
        wait_for_requeue(run)
        release_requeued_job(run)
        site.wait_for_no_jobs()
    run.wait()
    assert run.read_outcome()["state"] == "done"
    assert count_events(run.folder, "launched") == 1


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "torchrun"])
def test_memory_that_runs_out_without_cgroups_is_named(unusual_site: Site, launcher: str) -> None:
    """Use nodes whose names in Slurm differ from their host names."""
    limit = ("--slurm", "mem=1000", "--slurm", "cpus-per-task=1")
    run = BackgroundRun(unusual_site, *TWO_NODES, *limit, "--launcher", launcher, script="hungry.py")
    output = run.wait(code=1)
    result = run.read_outcome()
    assert (result["state"], result["first_failure"]) == ("failed", None)
    assert result["problem"].startswith("it ran out of memory (--slurm mem=): slurmstepd-beta2"), output
    layout = json.loads((run.folder / "layout.json").read_text())
    assert [node["name"] for node in layout["nodes"]] == ["beta1", "beta2"]


def test_whole_nodes_come_with_their_memory(unusual_site: Site) -> None:
    run = BackgroundRun(unusual_site, *TWO_NODES, script="hungry.py")  # takes 2 GB, of 4 GB
    run.wait()


def test_a_cancelled_job_that_slurm_has_forgotten_is_unknown_without_accounting(unusual_site: Site) -> None:
    done = unusual_site.run_on(LOGIN, *orch_command("attach", cancel_until_forgotten(unusual_site)))
    assert done.returncode not in (0, 3), done.stdout + done.stderr
    assert "cannot tell whether it was cancelled" in done.stdout, done.stdout + done.stderr
    assert "was lost" not in done.stdout
