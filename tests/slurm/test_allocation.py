"""Test `orch train --on slurm` inside an allocation that the user holds: the run is a step of it."""

from __future__ import annotations

import json
import re
import shlex

from tests.conftest import ORCH
from tests.slurm.runs import LONG_RUN, ONE_NODE, TWO_NODES, BackgroundRun, find_row
from tests.slurm.site import LOGIN, Site
from tests.support.waiting import wait_until

ALLOCATE = ("salloc", "--nodes=2", "--exclusive")
LIST_JOBS = 'squeue --noheader --me --format="%i %T"'
# Runs a command in the allocation, and prints its exit code and the user's jobs.
LIST_JOBS_AFTER = ("sh", "-c", f'"$@"; echo "code $?"; {LIST_JOBS}', "sh")
# Options of runs, and what orch says about them; the allocation has two nodes with two CPUs each.
REFUSED = {
    ("--nodes", "3"): "has 2 nodes, but the run needs 3",
    ("--ppn", "3"): "has 2 CPUs on a node, but --ppn is 3",
    ("--slurm", "time=5", "--array", "seed=1,2"): "--slurm time, --array: allocation ",
}


def test_runs_in_an_allocation_are_steps_of_it_unless_they_do_not_fit(site: Site) -> None:
    """Train with mpirun, which starts steps itself; on fewer nodes than there are; and, if requested, as a new job."""
    requests = (
        (*TWO_NODES, "--launcher", "mpirun", "--json", "--", "--steps", "5"),
        (*ONE_NODE, "--ppn", "2", "--json", "--", "--steps", "3"),
        *((*TWO_NODES, *options) for options in REFUSED),
        (*ONE_NODE, "--slurm", "allocation=new", "--slurm", "hold", "--detach"),
    )
    commands = [shlex.join((*ORCH, "train", "faulty.py", *request)) for request in requests]
    streams = ["" if "--json" in request else " 2>&1" for request in requests]
    script = "".join(f'{command}{stream}; echo "code $?"\n' for command, stream in zip(commands, streams, strict=True))
    done = site.run_on(LOGIN, *ALLOCATE, "sh", "-c", script + LIST_JOBS)
    messages = done.stdout + done.stderr
    *outputs, jobs = re.split(r"^code \d+\n", done.stdout, flags=re.MULTILINE)
    assert re.findall(r"^code (\d+)$", done.stdout, re.MULTILINE) == ["0", "0", "2", "2", "2", "0"], messages
    results = [json.loads(output) for output in outputs[:2]]
    assert [(run["state"], run["ranks"], run["ran_on"]) for run in results] == [("done", 2, 2), ("done", 2, 1)]
    plan = json.loads((site.home / "runs" / results[0]["run_id"] / "plan.json").read_text())
    allocation, dot, _ = plan["location"]["job"].partition(".")
    assert dot
    assert f"{allocation} RUNNING" in jobs
    assert re.findall(r" (\w+)$", jobs, re.MULTILINE).count("PENDING") == 1, jobs
    assert len(jobs.splitlines()) == 2, "only the new job besides the allocation"
    assert find_row(site, results[0]["run_id"])["state"] == "done"
    for output, reason in zip(outputs[2:], REFUSED.values(), strict=False):
        assert reason in output
        assert "--slurm allocation=new" in output


def test_stop_ends_the_step_and_not_the_allocation(site: Site) -> None:
    run = BackgroundRun(site, *TWO_NODES, *LONG_RUN, prefix=(*ALLOCATE, *LIST_JOBS_AFTER))
    run.wait_for_event("joined", 2)
    assert find_row(site, run.folder.name)["state"] == "running"
    site.orch("stop", run.folder.name)
    output = run.wait()
    assert "code 130" in output, output
    assert f"{run.job_id().partition('.')[0]} RUNNING" in output, output
    assert run.read_outcome()["state"] == "stopped"
    site.wait_until_ended("faulty.py", "n1", "n2")


def test_the_end_of_the_allocation_is_the_end_of_the_run(site: Site) -> None:
    run = BackgroundRun(site, *ONE_NODE, *LONG_RUN, prefix=ALLOCATE)
    run.wait_for_event("joined")
    site.stdout_of("scancel", run.job_id().partition(".")[0])
    out, err = run.process.communicate(timeout=300)
    assert run.process.returncode != 0, out + err
    wait_until(lambda: (run.folder / "outcome.json").exists(), "an outcome")
