"""Run `orch stop` without an id, while some runs have ended and others have not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from orchestrator.files import TRAIN
from tests.local.runs import Orch, expect_exit, last_run, write_script
from tests.support.recorded import make_run


def test_stop_selects_the_newest_unfinished_run_and_names_the_others(orch: Orch, tmp_path: Path) -> None:
    planned = make_run(tmp_path / "runs", "20250101-120000-qa-0000", created=1.0)
    (planned / "outcome.json").unlink()
    expect_exit(orch("train", write_script(tmp_path, "import time\ntime.sleep(600)\n"), "--ppn", "1", "--detach"))
    live = last_run(tmp_path).name
    make_run(tmp_path / "runs", "29990101-120000-qa-0000", created=32472144000.0)
    stopped = orch("stop")
    assert stopped.stdout.startswith(f"Stopped run {live}.\n"), stopped.stdout
    assert f"Still running: {planned.name}." in stopped.stdout
    repeated = expect_exit(orch("stop", live)).stdout
    assert repeated.startswith(f"Run {live} had already ended (stopped); nothing of it was")
    second = json.loads(orch("stop", "--json").stdout)
    assert (second["run_id"], second["not_stopped"]) == (planned.name, [])


def test_stopped_run_that_never_began_is_not_stopped_again(orch: Orch, tmp_path: Path) -> None:
    name = "20250101-120000-qa-0000"
    program = {"train": str(TRAIN), "python": sys.executable, "run_dir": str(tmp_path / "runs" / name)}
    planned = make_run(tmp_path / "runs", name, **program)
    (planned / "outcome.json").unlink()
    (planned / "events.jsonl").unlink()
    assert expect_exit(orch("stop")).stdout.startswith(f"Stopped run {name}.\n")
    assert orch("stop").stdout.startswith(f"Run {name} had already ended (stopped)")
