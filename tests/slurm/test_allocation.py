"""`orch train --on slurm` inside an allocation that the user holds: the run is a step of it."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.slurm.site import LOGIN, Site, orch_words
from tests.slurm.test_run_slurm import SLOW, TWO, Started
from tests.support.waiting import wait_until

HOLD = ("salloc", "--nodes=2", "--exclusive")
# Runs a command in the allocation, then prints its exit code and the user's jobs.
THEN_LIST = ("sh", "-c", '"$@"; echo "code $?"; squeue --noheader --me --format="%i %T"', "sh")


def train_in(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = orch_words("train", "faulty.py", *arguments)
    return site.on(LOGIN, *HOLD, *THEN_LIST, *command, seconds=180)


@pytest.mark.parametrize("launcher", ["srun", "mpirun", "torchrun"])
def test_a_run_in_an_allocation_is_a_step_of_it(ready: Site, launcher: str) -> None:
    done = train_in(ready, *TWO, "--launcher", launcher, "--json", "--", "--steps", "5")
    output, _, listed = done.stdout.rpartition("code ")
    assert listed.startswith("0\n"), done.stdout + done.stderr
    result = json.loads(output)
    assert (result["state"], result["ranks"], result["ran_on"]) == ("done", 2, 2)
    plan = json.loads((ready.home / "runs" / result["run_id"] / "plan.json").read_text())
    allocation, dot, _ = plan["location"]["job"].partition(".")
    assert dot
    assert listed.splitlines()[1:] == [f"{allocation} RUNNING"], "no other job"
    rows = json.loads(ready.orch("runs", "--inventory", "slurm", "--json").stdout)["runs"]
    assert (rows[-1]["id"], rows[-1]["state"]) == (result["run_id"], "done")


def test_a_run_takes_fewer_nodes_than_its_allocation_has(ready: Site) -> None:
    words = ("--on", "slurm", "--nodes", "1", "--ppn", "2", "--backend", "gloo", "--fresh")
    done = train_in(ready, *words, "--json", "--", "--steps", "3")
    output, _, listed = done.stdout.rpartition("code ")
    assert listed.startswith("0\n"), done.stdout + done.stderr
    assert (json.loads(output)["ranks"], json.loads(output)["ran_on"]) == (2, 1)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        pytest.param(("--nodes", "3"), "has 2 nodes, but the run needs 3", id="nodes"),
        pytest.param(("--ppn", "3"), "has 2 CPUs on a node, but --ppn is 3", id="ppn"),
        pytest.param(("--slurm", "time=5"), "--slurm time: allocation ", id="time"),
        pytest.param(("--array", "seed=1,2"), "--array: allocation ", id="array"),
    ],
)
def test_a_request_that_does_not_fit_the_allocation_is_refused(
    ready: Site, asked: tuple[str, ...], reason: str
) -> None:
    done = train_in(ready, *TWO, *asked)
    assert "code 2" in done.stdout, done.stdout + done.stderr
    assert reason in done.stderr
    assert "--slurm allocation=new" in done.stderr


def test_a_new_job_is_submitted_if_the_user_says_so(ready: Site) -> None:
    one = ("--on", "slurm", "--nodes", "1", "--backend", "gloo", "--fresh")
    done = train_in(ready, *one, "--slurm", "allocation=new", "--detach")
    assert "code 0" in done.stdout, done.stdout + done.stderr
    assert len(done.stdout.rpartition("code 0\n")[2].splitlines()) == 2, done.stdout


@pytest.mark.parametrize("act", ["stop", "interrupt"])
def test_stop_and_interrupt_end_the_step_and_not_the_allocation(ready: Site, act: str) -> None:
    run = Started(ready, *TWO, *SLOW, before=(*HOLD, *THEN_LIST))
    run.await_event("joined", 2)
    row = json.loads(ready.orch("runs", "--inventory", "slurm", "--json").stdout)["runs"][-1]
    assert row["state"] == "running"
    if act == "stop":
        done = ready.orch("stop", run.folder.name)
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        ready.said("pkill", "-INT", "--newest", "-f", "orchestrator.cli.main train")
    _, output = run.end()
    assert "code 130" in output, output
    assert f"{run.job().partition('.')[0]} RUNNING" in output, output
    assert run.outcome()["state"] == "stopped"
    for node in ("n1", "n2"):
        wait_until(
            lambda node=node: ready.on(node, "pgrep", "-f", "faulty.py").stdout == "",  # type: ignore[misc]
            f"that no rank is left on {node}",
        )


# squeue as it is before Slurm lists a step.
WITHOUT_STEPS = r"""mkdir -p /tmp/without-steps
cat >/tmp/without-steps/squeue <<'END'
#!/bin/sh
case "$*" in *--steps*) exit 0 ;; esac
exec /usr/bin/squeue "$@"
END
chmod +x /tmp/without-steps/squeue"""


STEPS = 'squeue --noheader --me --steps --format="%i %j"'
THEN_LIST_STEPS = ("sh", "-c", f'"$@"; echo "code $?"; sleep 3; {STEPS}', "sh")


def test_an_interrupt_before_slurm_lists_the_step_ends_it(ready: Site) -> None:
    ready.said("sh", "-c", WITHOUT_STEPS)
    command = orch_words("train", "faulty.py", *TWO, *SLOW)
    interrupted = ("timeout", "--signal=INT", "25", "env", "PATH=/tmp/without-steps:/usr/bin:/bin")
    done = ready.on(LOGIN, *HOLD, *THEN_LIST_STEPS, *interrupted, *command)
    _, code, listed = done.stdout.rpartition("code ")
    assert code, done.stdout + done.stderr
    assert listed.splitlines() == ["124"], "interrupted after 25 s, and no step is left"


def test_the_end_of_the_allocation_is_the_end_of_the_run(ready: Site) -> None:
    run = Started(ready, *TWO, *SLOW, before=HOLD)
    run.await_event("joined", 2)
    ready.said("scancel", run.job().partition(".")[0])
    code, output = run.end()
    assert code != 0, output
    wait_until(lambda: (run.folder / "outcome.json").exists(), "an outcome")
