"""Test what some sites do: suspend jobs, give grace times, wrap sbatch, lose nodes for a while, limit memory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest

from tests.slurm import runs
from tests.slurm.conftest import prepare, start_site
from tests.slurm.site import LOGIN, USER, Site
from tests.support.files import write_program
from tests.support.images import run_program
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif("ORCH_SLURM_SUITE" not in os.environ, reason="needs ORCH_SLURM_SUITE (make test-all)")
# Calls the real sbatch, and prints a line as wrappers of sites do.
SBATCH_WRAPPER = '#!/bin/sh\n/usr/bin/sbatch "$@"; code=$?\necho "You have 340 hours left."\nexit $code\n'
# Rank 1 takes more memory than a job of 1000 MB has, and keeps it until Slurm, which looks every second, has seen it.
HUNGRY_SCRIPT = """
import time
from collections.abc import Iterator
import torch, torch.distributed as dist
dist.init_process_group()
dist.barrier()
if dist.get_rank() == 1:
    memory = torch.ones(1 << 29)
    time.sleep(20)
dist.barrier()
"""
GREETING_SCRIPT = """
import os
import torch.distributed as dist
dist.init_process_group()
print("greeting:", os.environ["GREETING"])
"""


@pytest.fixture(scope="module")
def session_strict_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from start_site(tmp_path_factory, "strict", strict=True)


@pytest.fixture
def strict_site(session_strict_site: Site) -> Site:
    """Return a Slurm with cgroups and accounting, and without jobs."""
    (session_strict_site.home / "hungry.py").write_text(HUNGRY_SCRIPT)
    return prepare(session_strict_site)


def test_a_suspended_job_continues(site: Site) -> None:
    run = runs.BackgroundRun(site, *runs.TWO_NODES, script=runs.UNTIL_FINISH)
    run.wait_for_event("joined", 2)
    site.stdout_of("scontrol", "suspend", run.job_id(), user="root")
    time.sleep(35)  # longer than supervisor and agents wait for each other
    assert runs.find_row(site, run.folder.name)["state"] == "running"
    site.stdout_of("scontrol", "resume", run.job_id(), user="root")
    run.finish()
    output = run.wait()
    assert "is suspended" in output
    assert "back in the queue" not in output


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_preemption_with_a_grace_time_writes_a_checkpoint(site: Site, launcher: str) -> None:
    """Use the default PreemptParameters: Slurm signals the steps, but not the batch script."""
    run = runs.start_checkpointing_run(site, "--slurm", "partition=grace", "--launcher", launcher)
    site.stdout_of("sbatch", "--partition=urgent", "--nodes=3", "--exclusive", "--wrap", "true")
    runs.start_requeued_job(run)
    result = json.loads((run.folder / "outcome-0.json").read_text())
    assert result["problem"].startswith("checkpoint at step"), result
    run.wait()


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_ranks_get_the_environment_of_setup_commands_and_not_that_of_another_job(site: Site, launcher: str) -> None:
    """Submit with a wrapper around sbatch."""
    (site.home / "greeting.py").write_text(GREETING_SCRIPT)
    write_program(site.home / "wrapped" / "sbatch", SBATCH_WRAPPER)
    other_job = ("SLURM_MEM_PER_CPU=100", "SLURM_MEM_PER_NODE=100", "SLURM_JOB_ID=1")
    environment = ("env", f"PATH=/home/{USER}/wrapped:/usr/bin:/bin", *other_job)
    options = (
        *("--slurm", "setup=export GREETING='a b'", "--slurm", "setup=GREETING+=' c'"),
        *("--launcher", launcher),
    )
    run = runs.BackgroundRun(site, *runs.TWO_NODES, *options, script="greeting.py", prefix=environment)
    run.wait()
    logs = [(run.folder / "ranks" / f"rank-{rank}.log").read_text() for rank in range(2)]
    assert all("greeting: a b c" in log for log in logs), logs


def test_a_runs_folder_that_the_nodes_do_not_share_is_named(site: Site) -> None:
    done = site.orch("train", "faulty.py", *runs.TWO_NODES, "--runs-dir", "/tmp/of-login", code=1)
    output = done.stdout + done.stderr
    assert "share" in output, output
    assert "--runs-dir" in output, output


def test_a_node_that_comes_back_ends_its_ranks_after_a_new_start(site: Site) -> None:
    """Cut the first node's network until Slurm has started the job again: it still sees the folder of the run."""
    run = runs.BackgroundRun(site, *runs.ONE_NODE, script=runs.UNTIL_FINISH)
    run.wait_for_event("joined")
    node = site.stdout_of("squeue", "--noheader", "--format=%N")
    process = run_program("docker", "inspect", "--format={{.State.Pid}}", site.container(node)).strip()
    link = ("nsenter", "--target", process, "--net", "ip", "link", "set", "eth0")
    run_program(*link, "down")
    try:
        runs.start_requeued_job(run)
        wait_until(lambda: run.count_restarts() == 1, "the second start")
        site.wait_until_ended(runs.UNTIL_FINISH, node)
    finally:
        run_program(*link, "up")
    run.finish()
    run.wait()
    assert run.read_outcome()["state"] == "done"
    assert run.count_restarts() == 1


def test_a_rank_that_takes_more_memory_than_its_job_has_is_named(strict_site: Site) -> None:
    """Use nodes whose names in Slurm differ from their host names."""
    limit = ("--slurm", "mem=1000", "--slurm", "cpus-per-task=1")
    run = runs.BackgroundRun(strict_site, *runs.TWO_NODES, *limit, script="hungry.py")
    output = run.wait(code=1)
    failure = run.read_outcome()["first_failure"]
    assert (failure["rank"], failure["node"], failure["signal"]) == (1, "beta2", "SIGKILL"), output
    assert "memory" in output, output


def test_a_run_continues_while_accounting_is_down(strict_site: Site) -> None:
    """Stop accounting before the run starts, and start it after the run has ended."""
    strict_site.run_on(LOGIN, "pkill", "-x", "slurmdbd", user="root")
    try:
        find = ("pgrep", "-x", "slurmdbd")
        wait_until(lambda: strict_site.run_on(LOGIN, *find, user="root").returncode, "that slurmdbd has ended")
        result = runs.train(strict_site, *runs.TWO_NODES, "--json", "--", "--steps", "5")
        assert (result["state"], result["ranks"]) == ("done", 2)
    finally:
        as_slurm = ("setpriv", "--reuid", "slurm", "--regid", "slurm", "--clear-groups")
        strict_site.stdout_of(*as_slurm, "slurmdbd", user="root")
    find_job = ("sacct", "--noheader", "--format=State", f"--name=orch-{result['run_id']}")
    wait_until(
        lambda: "COMPLETED" in strict_site.run_on(LOGIN, *find_job).stdout, "that accounting has the job", seconds=60
    )


def test_a_run_on_a_named_cluster_queries_that_cluster_and_has_its_accounting(strict_site: Site) -> None:
    """Record the options of squeue with a wrapper, because this Slurm has one cluster only."""
    wrapper = '#!/bin/sh\necho "$@" >>"$HOME/queries"\nexec /usr/bin/squeue "$@"\n'
    write_program(strict_site.home / "recording" / "squeue", wrapper)
    path = ("env", f"PATH=/home/{USER}/recording:/usr/bin:/bin")
    run = runs.BackgroundRun(strict_site, *runs.TWO_NODES, "--slurm", "clusters=orch", *runs.LONG_RUN, prefix=path)
    run.wait_for_event("joined", 2)
    location = json.loads((run.folder / "plan.json").read_text())["location"]
    assert location["cluster"] == "orch"
    strict_site.orch("stop", run.folder.name)
    run.wait(code=130)
    assert "--clusters=orch" in (strict_site.home / "queries").read_text()
    accounting = json.loads(strict_site.orch("runs", "show", run.folder.name, "--json").stdout)["accounting"]
    assert accounting["source"] == "sacct"
    assert accounting["job"] == location["job"]
    assert accounting["elapsed_seconds"] > 0
    assert accounting["max_rss_bytes"] > 50 << 20
