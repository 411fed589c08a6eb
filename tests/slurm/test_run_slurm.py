"""`orch train --on slurm` against a real Slurm: runs, faults, and what a job is told as."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.site import LOGIN, USER, Site, orch_words
from tests.support.waiting import wait_until

TWO = ("--on", "slurm", "--nodes", "2", "--ppn", "1", "--backend", "gloo", "--fresh")
SLOW = ("--", "--seconds", "0.2", "--steps", "1000")


class Started:
    """`orch train` that goes on while a test does something to its job."""

    def __init__(self, site: Site, *arguments: str, script: str = "faulty.py", before: tuple[str, ...] = ()) -> None:
        self.site = site
        known = set(self.runs())
        self.process = subprocess.Popen(
            site.command(LOGIN, *before, *orch_words("train", script, *arguments)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: set(self.runs()) - known or self.process.poll() is not None, "a run")
        self.folder = next(iter(set(self.runs()) - known))

    def runs(self) -> list[Path]:
        return [path.parent for path in (self.site.home / "runs").glob("*/plan.json")]

    def job(self) -> str:
        return str(json.loads((self.folder / "plan.json").read_text())["location"]["job"])

    def await_event(self, kind: str, count: int = 1) -> None:
        events = self.folder / "events.jsonl"

        def there() -> bool:
            text = events.read_text() if events.exists() else ""
            return text.count(f'"event": "{kind}"') >= count

        wait_until(lambda: there() or self.process.poll() is not None, f"{count} events {kind}")
        assert there(), self.process.communicate()

    def end(self) -> tuple[int, str]:
        out, err = self.process.communicate(timeout=180)
        return self.process.returncode, out + err

    def outcome(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "outcome.json").read_text())
        return found


def train(site: Site, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = site.orch("train", "faulty.py", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    words = arguments[: arguments.index("--")] if "--" in arguments else arguments
    found: dict[str, Any] = json.loads(done.stdout) if "--json" in words else {}
    return {**found, "err": done.stderr}


def test_a_run_and_every_verb(ready: Site) -> None:
    told = train(ready, *TWO, "--json", "--", "--steps", "5")
    assert (told["state"], told["ranks"]) == ("done", 2)
    recorded = told["accounting"]  # the site keeps none
    assert (recorded["source"], recorded["state"]) == ("scontrol", "COMPLETED")
    assert recorded["max_rss_bytes"] is None
    folder = ready.home / "runs" / told["run_id"]
    layout = json.loads((folder / "layout.json").read_text())
    assert [(one["node"], one["cpus"]) for one in layout["ranks"]] == [("n1", [0, 1]), ("n2", [0, 1])]
    rows = json.loads(ready.orch("runs", "--inventory", "slurm", "--json").stdout)["runs"]
    row = next(one for one in rows if one["id"] == told["run_id"])
    assert (row["state"], row["nodes"]) == ("done", ["n1", "n2"])
    assert "[1 n2] finished" in ready.orch("logs", told["run_id"]).stdout
    assert ready.orch("attach", told["run_id"]).returncode == 0
    assert ready.orch("stop", told["run_id"]).returncode == 0
    assert ready.orch("clean", "--inventory", "slurm").returncode == 0


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_launchers_need_no_ssh_between_nodes(ready: Site, launcher: str) -> None:
    told = train(ready, *TWO, "--launcher", launcher, "--json", "--", "--steps", "3")
    assert told["state"] == "done"


def test_the_script_of_a_dry_run_is_one_for_sbatch(ready: Site) -> None:
    script = ready.orch("train", "faulty.py", *TWO, "--dry-run", "--", "--steps", "3").stdout
    (ready.home / "job.sh").write_text(script)
    ready.said("sbatch", "--wait", "job.sh")
    (run_dir,) = [line.split()[-1] for line in script.splitlines() if line.startswith("mkdir")]
    folder = ready.home / Path(run_dir).relative_to(f"/home/{USER}")
    assert json.loads((folder / "outcome.json").read_text())["state"] == "done"


def test_the_first_rank_that_fails_is_named(ready: Site) -> None:
    told = train(ready, *TWO, "--json", "--", "--fault", "exception", code=1)
    failure = told["failure"]
    assert (failure["rank"], failure["node"]) == (1, "n2")
    assert "ValueError: boom" in failure["text"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--nodes", "9"), "does not have the requested resources|node configuration is not available"),
        (("--slurm", "partition=nosuch"), "invalid partition specified: nosuch"),
        (("--slurm", "time=9999"), "so orch cancelled it: its partition"),
        (("--slurm", "constraint=gold"), "Invalid feature specification"),
    ],
)
def test_what_can_never_start_is_told_at_once(ready: Site, asked: tuple[str, ...], words: str) -> None:
    outcomes = set((ready.home / "runs").glob("*/outcome.json"))
    done = ready.orch("train", "faulty.py", *TWO, *asked, seconds=60)
    assert done.returncode == 1
    assert re.search(words, done.stderr)
    assert ready.said("squeue", "--noheader") == ""
    new_outcomes = set((ready.home / "runs").glob("*/outcome.json")) - outcomes
    assert len(new_outcomes) == ("so orch cancelled it" in done.stderr), "Slurm has refused the others"


def test_a_job_that_somebody_cancels(ready: Site) -> None:
    run = Started(ready, *TWO, *SLOW)
    run.await_event("joined", 2)
    ready.said("scancel", run.job())
    code, words = run.end()
    assert run.outcome()["problem"].startswith(f"job {run.job()}: the job was cancelled"), words
    assert code == 130, words
    assert ready.said("squeue", "--noheader") == ""


def test_stop_ends_the_job_and_says_so(ready: Site) -> None:
    run = Started(ready, *TWO, *SLOW)
    run.await_event("joined", 2)
    done = ready.orch("stop", run.folder.name)
    assert done.returncode == 0, done.stdout + done.stderr
    code, words = run.end()
    assert code == 130, words
    assert ready.said("squeue", "--noheader") == ""
    assert set(run.outcome()["nodes"]) == {"n1", "n2"}


def await_requeue(site: Site) -> None:
    # Not all queries are answered while a node does not respond.
    wait_until(lambda: site.on(LOGIN, "squeue", "--noheader", "--format=%r").stdout.strip() == "BeginTime", "a requeue")


def let_go(site: Site, run: Started) -> None:
    """Not in 2 minutes, and not at once: nodes take no start of a job from the second in which its
    last turn was ended (`Killing non-startable batch job: Job credential revoked`)."""
    site.said("scontrol", "update", f"jobid={run.job()}", "starttime=now+3")


def comes_again(site: Site, run: Started) -> None:
    await_requeue(site)
    let_go(site, run)


PREEMPTED = """
import pathlib, time
import torch, torch.distributed as dist
from orch_node import preemption
dist.init_process_group()
mark = pathlib.Path("checkpoint")
first = int(mark.read_text()) if mark.exists() else 0
for step in range(first, first + (8 if first else 1000)):
    dist.all_reduce(torch.ones(4))
    time.sleep(0.1)
    if preemption.requested():
        mark.write_text(str(step))
        preemption.end(step)
    if step == first:
        print("listening", flush=True)  # before it asks, a signal ends a rank at once
print("from", first, flush=True)
"""


# So that what Slurm ends with the job is still there when it does so.
SLOW_TO_END = """#!/bin/sh
/usr/bin/scontrol "$@"; code=$?
[ "$1" != requeue ] || sleep 3
exit $code
"""


def test_a_job_that_makes_room_goes_on_by_itself(ready: Site) -> None:
    """As before its time is over: Slurm signals the batch script."""
    (ready.home / "room.py").write_text(PREEMPTED)
    slow = ready.home / "bin" / "scontrol"
    slow.parent.mkdir()
    slow.write_text(SLOW_TO_END)
    slow.chmod(0o755)
    path = ("env", f"PATH=/home/{USER}/bin:/usr/bin:/bin")
    run = Started(ready, *TWO, script="room.py", before=path)
    run.await_event("joined", 2)
    logs = [run.folder / "ranks" / f"rank-{rank}.log" for rank in range(2)]
    wait_until(lambda: all(log.exists() and "listening" in log.read_text() for log in logs), "a step")
    ready.said("scancel", "--batch", "--signal=TERM", run.job())
    comes_again(ready, run)
    code, words = run.end()
    assert code == 0, words
    assert json.loads((run.folder / "slurm-job.json").read_text())["restarts"] == 1
    told = json.loads((run.folder / "outcome-0.json").read_text())
    assert told["problem"].startswith("checkpoint at step")


def test_a_job_that_slurm_preempts_comes_again(ready: Site) -> None:
    """Without a time of grace, so that there is no room for a checkpoint."""
    run = Started(ready, *TWO, "--", "--seconds", "0.1", "--steps", "60")
    run.await_event("joined", 2)
    ready.said("sbatch", "--partition=urgent", "--nodes=3", "--exclusive", "--wrap", "true")
    await_requeue(ready)
    assert json.loads(ready.orch("runs", "--inventory", "slurm", "--json").stdout)["runs"][-1]["state"] == "waiting"
    let_go(ready, run)
    code, words = run.end()
    assert code == 0, words
    assert "is back in the queue" in words


def test_a_controller_that_starts_again_ends_no_run(ready: Site) -> None:
    run = Started(ready, *TWO, "--", "--seconds", "0.2", "--steps", "60")
    run.await_event("joined", 2)
    ready.on(LOGIN, "pkill", "-TERM", "-x", "slurmctld", user="root")
    code, words = run.end()
    assert code == 0, words


def test_a_spare_node_takes_the_place_of_one_that_dies(ready: Site) -> None:
    run = Started(ready, *TWO, "--max-restarts", "1", "--spare-nodes", "1", "--", "--seconds", "0.2", "--steps", "100")
    run.await_event("joined", 2)
    subprocess.run(["docker", "kill", ready.container("n2")], check=True, capture_output=True)
    code, words = run.end()
    assert code == 0, words
    assert "n3 replaces n2" in words
    assert run.outcome()["attempts"] == 2
