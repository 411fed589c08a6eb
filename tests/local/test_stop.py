"""`orch stop` without an id, beside runs that have ended and others that have not."""

from __future__ import annotations

import json
from pathlib import Path

from tests.local.runs import Orch, expect_exit
from tests.support.recorded import make_run

LONG = "import time\ntime.sleep(600)\n"


def test_stop_takes_the_newest_run_that_has_not_ended_and_names_the_others(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(LONG)
    planned = make_run(tmp_path / "runs", "20250101-120000-qa-0000", created=1.0)
    (planned / "outcome.json").unlink()
    expect_exit(orch("train", "own.py", "--ppn", "1", "--detach"))
    live = next((tmp_path / "runs").glob("*-own-*")).name
    make_run(tmp_path / "runs", "29990101-120000-qa-0000", created=32472144000.0)
    stopped = orch("stop")
    assert stopped.stdout.startswith(f"Stopped run {live}.\n"), stopped.stdout
    assert f"Still running: {planned.name}." in stopped.stdout
    expect_exit(orch("stop", live))
    again = json.loads(orch("stop", "--json").stdout)
    assert (again["run_id"], again["not_stopped"]) == (planned.name, [])
