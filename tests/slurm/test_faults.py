"""Faults that take a minute each, on a real Slurm: only where ORCH_SLURM_SUITE is set."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.slurm.site import Site
from tests.slurm.test_run_slurm import PREEMPTED, TWO, Started, comes_again, train
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif("ORCH_SLURM_SUITE" not in os.environ, reason="needs ORCH_SLURM_SUITE (make test-all)")


def test_a_rank_that_hangs_is_told_with_its_stack_trace(ready: Site) -> None:
    told = train(ready, *TWO, "--stall-timeout", "20", "--json", "--", "--fault", "sleep", code=1)
    assert "no progress" in told["problem"], told
    traces = ready.home / "runs" / told["run_id"] / "stacks" / "rank-1.txt"
    assert "faulty.py" in traces.read_text()
    wait_until(lambda: ready.said("squeue", "--noheader") == "", "that the job has ended")


def test_a_node_that_dies_without_a_spare_is_named(ready: Site) -> None:
    run = Started(ready, *TWO, "--", "--seconds", "0.2", "--steps", "1000")
    run.await_event("joined", 2)
    subprocess.run(["docker", "kill", ready.container("n2")], check=True, capture_output=True)
    code, words = run.end()
    assert code == 1, words
    assert "n2" in words
    assert run.outcome()["state"] == "failed"


def listens(run: Started, times: int) -> bool:
    logs = [run.folder / "ranks" / f"rank-{rank}.log" for rank in range(2)]
    return all(log.exists() and log.read_text().count("listening") >= times for log in logs)


def test_a_real_time_limit_is_a_checkpoint_and_another_turn(ready: Site) -> None:
    """Slurm sends the signal 50 to 80 s before the end: the ranks of a busy machine have joined by then."""
    (ready.home / "room.py").write_text(PREEMPTED)
    time_limit = ("--slurm", "time=2", "--slurm", "signal=B:TERM@50")
    run = Started(ready, *TWO, *time_limit, script="room.py")
    run.await_event("joined", 2)
    comes_again(ready, run)
    told = json.loads((run.folder / "outcome-0.json").read_text())
    assert told["problem"].startswith("checkpoint at step")
    ready.said("scontrol", "update", f"jobid={run.job()}", "timelimit=10", user="root")
    code, words = run.end()
    assert code == 0, words


def test_a_job_that_makes_room_twice(ready: Site) -> None:
    text = PREEMPTED.replace("(8 if first else 1000)", "60")
    (ready.home / "room.py").write_text(text)
    run = Started(ready, *TWO, script="room.py")
    for times in (1, 2):
        wait_until(lambda times=times: listens(run, times), "a step")  # type: ignore[misc]
        ready.said("scancel", "--batch", "--signal=TERM", run.job())
        comes_again(ready, run)
    code, words = run.end()
    assert code == 0, words
    assert json.loads((run.folder / "slurm-job.json").read_text())["restarts"] == 2
