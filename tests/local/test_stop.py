"""Run `orch stop` without an id, while some runs have ended and others have not."""

from __future__ import annotations

import json
from pathlib import Path

from tests.local.runs import Orch, expect_exit, last_run, read_events, read_outcome, write_script
from tests.support.recorded import make_run
from tests.support.waiting import wait_until

# Would end with a checkpoint if it were preempted.
CHECKPOINT_SCRIPT = """
import time
from orch_node import preemption
print("trains", flush=True)
for step in range(60_000):
    time.sleep(0.01)
    if preemption.requested():
        preemption.end(step)
"""


def test_stop_selects_the_newest_unfinished_run_and_names_the_others(orch: Orch, tmp_path: Path) -> None:
    planned = make_run(tmp_path / "runs", "20250101-120000-qa-0000", created=1.0)
    (planned / "outcome.json").unlink()
    expect_exit(orch("train", write_script(tmp_path, CHECKPOINT_SCRIPT), "--ppn", "1", "--detach"))
    run = last_run(tmp_path)
    live = run.name
    log = run / "ranks/rank-0.log"
    wait_until(lambda: log.exists() and "trains" in log.read_text(), "a rank that could be preempted")
    make_run(tmp_path / "runs", "29990101-120000-qa-0000", created=32472144000.0)
    stopped = orch("stop")
    assert stopped.stdout.startswith(f"Stopped run {live}.\n"), stopped.stdout
    assert f"Still running: {planned.name}." in stopped.stdout
    assert read_outcome(run)["state"] == "stopped"
    assert not read_events(run, "preempted"), "to stop a run is not to preempt it"
    repeated = expect_exit(orch("stop", live)).stdout
    assert repeated.startswith(f"Run {live} had already ended (stopped); nothing of it was")
    second = json.loads(orch("stop", "--json").stdout)
    assert (second["run_id"], second["not_stopped"]) == (planned.name, [])
