"""Test `orch train --on slurm` inside an allocation that the user holds: the run is a step of it."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.slurm.runs import LONG_RUN, ONE_NODE, TWO_NODES, BackgroundRun, find_row, interrupt
from tests.slurm.site import LOGIN, Site, orch_command
from tests.support.waiting import wait_until

ALLOCATE = ("salloc", "--nodes=2", "--exclusive")
# Runs a command in the allocation, and prints its exit code and the user's jobs.
LIST_JOBS_AFTER = ("sh", "-c", '"$@"; echo "code $?"; squeue --noheader --me --format="%i %T"', "sh")


def train_in_allocation(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = orch_command("train", "faulty.py", *arguments)
    return site.run_on(LOGIN, *ALLOCATE, *LIST_JOBS_AFTER, *command)


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "torchrun"])
def test_a_run_in_an_allocation_is_a_step_of_it(site: Site, launcher: str) -> None:
    done = train_in_allocation(site, *TWO_NODES, "--launcher", launcher, "--json", "--", "--steps", "5")
    output, _, listed = done.stdout.rpartition("code ")
    assert listed.startswith("0\n"), done.stdout + done.stderr
    result = json.loads(output)
    assert (result["state"], result["ranks"], result["ran_on"]) == ("done", 2, 2)
    plan = json.loads((site.home / "runs" / result["run_id"] / "plan.json").read_text())
    allocation, dot, _ = plan["location"]["job"].partition(".")
    assert dot
    assert listed.splitlines()[1:] == [f"{allocation} RUNNING"], "no other job"
    assert find_row(site, result["run_id"])["state"] == "done"


def test_a_run_takes_fewer_nodes_than_its_allocation_has(site: Site) -> None:
    options = ("--on", "slurm", "--nodes", "1", "--ppn", "2", "--backend", "gloo", "--project", "none")
    done = train_in_allocation(site, *options, "--json", "--", "--steps", "3")
    output, _, listed = done.stdout.rpartition("code ")
    assert listed.startswith("0\n"), done.stdout + done.stderr
    result = json.loads(output)
    assert (result["ranks"], result["ran_on"]) == (2, 1)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param(("--nodes", "3"), "has 2 nodes, but the run needs 3", id="nodes"),
        pytest.param(("--ppn", "3"), "has 2 CPUs on a node, but --ppn is 3", id="ppn"),
        pytest.param(("--slurm", "time=5"), "--slurm time: allocation ", id="time"),
        pytest.param(("--array", "seed=1,2"), "--array: allocation ", id="array"),
    ],
)
def test_a_request_that_does_not_fit_the_allocation_is_refused(
    site: Site, options: tuple[str, ...], reason: str
) -> None:
    done = train_in_allocation(site, *TWO_NODES, *options)
    assert "code 2" in done.stdout, done.stdout + done.stderr
    assert reason in done.stderr
    assert "--slurm allocation=new" in done.stderr


def test_a_new_job_is_submitted_if_the_user_requests_one(site: Site) -> None:
    done = train_in_allocation(site, *ONE_NODE, "--slurm", "allocation=new", "--detach")
    assert "code 0" in done.stdout, done.stdout + done.stderr
    assert len(done.stdout.rpartition("code 0\n")[2].splitlines()) == 2, done.stdout


@pytest.mark.parametrize("end", ["stop", "interrupt"])
def test_stop_and_interrupt_end_the_step_and_not_the_allocation(site: Site, end: str) -> None:
    run = BackgroundRun(site, *TWO_NODES, *LONG_RUN, prefix=(*ALLOCATE, *LIST_JOBS_AFTER))
    run.wait_for_event("joined", 2)
    assert find_row(site, run.folder.name)["state"] == "running"
    if end == "stop":
        done = site.orch("stop", run.folder.name)
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        interrupt(site)
    _, output = run.wait()
    assert "code 130" in output, output
    assert f"{run.job_id().partition('.')[0]} RUNNING" in output, output
    assert run.read_outcome()["state"] == "stopped"
    site.wait_until_ended("faulty.py", "n1", "n2")


# A squeue that lists no steps, as before Slurm knows them.
SQUEUE_WITHOUT_STEPS = r"""mkdir -p /tmp/without-steps
cat >/tmp/without-steps/squeue <<'END'
#!/bin/sh
case "$*" in *--steps*) exit 0 ;; esac
exec /usr/bin/squeue "$@"
END
chmod +x /tmp/without-steps/squeue"""
# Runs a command in the allocation, and prints its exit code and the user's steps that have not ended after a minute.
LIST_STEPS_AFTER = """"$@"
echo "code $?"
for i in $(seq 60); do
    steps=$(squeue --noheader --me --steps --format="%i %j")
    [ -n "$steps" ] || break
    sleep 1
done
echo "$steps"
"""


def test_an_interrupt_before_slurm_lists_the_step_ends_it(site: Site) -> None:
    site.stdout_of("sh", "-c", SQUEUE_WITHOUT_STEPS)
    environment = ("env", "PATH=/tmp/without-steps:/usr/bin:/bin")
    allocation = (*ALLOCATE, "sh", "-c", LIST_STEPS_AFTER, "sh")
    run = BackgroundRun(site, *TWO_NODES, *LONG_RUN, prefix=(*allocation, *environment))
    run.wait_for_event("joined", 2)
    interrupt(site)
    out, err = run.process.communicate(timeout=300)
    assert out.rpartition("code ")[2].split() == ["130"], f"{out}{err}"


def test_the_end_of_the_allocation_is_the_end_of_the_run(site: Site) -> None:
    run = BackgroundRun(site, *TWO_NODES, *LONG_RUN, prefix=ALLOCATE)
    run.wait_for_event("joined", 2)
    site.stdout_of("scancel", run.job_id().partition(".")[0])
    code, output = run.wait()
    assert code != 0, output
    wait_until(lambda: (run.folder / "outcome.json").exists(), "an outcome")
