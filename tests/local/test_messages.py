"""Check what a newcomer reads: each fact once, also about a run that is refused."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from tests.local.runs import Orch, expect_exit, last_run, start_orch, write_script
from tests.support.waiting import wait_until


def test_refused_run_leaves_no_files_and_names_the_option_to_wait(orch: Orch, tmp_path: Path) -> None:
    train = ("train", write_script(tmp_path, "import time\ntime.sleep(60)\n"), "--ppn", "2")
    first = start_orch(tmp_path, *train, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: list(tmp_path.glob("runs/*/ranks/rank-1.log")), "the first run")
        folder = last_run(tmp_path)
        assert f"{folder.name}  running  " in orch("runs").stdout
        refused = expect_exit(orch(*train), 1)
        assert "refused: node0 is taken" in refused.stderr
        assert "--wait-for-cores waits" in refused.stderr
        assert (refused.stdout + refused.stderr).count("is taken") == 1
        assert "files:" not in refused.stderr
        assert list((tmp_path / "runs").glob("*/")) == [folder]
        assert [run["id"] for run in json.loads(orch("runs", "--json").stdout)["runs"]] == [folder.name]
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)


FAIL = """def act():
    open('data/x.csv')
try:
    import apex
except ImportError as error:
    print(repr(error))
from orch_node import report
for step in range(1, 4):
    print(f'step {step}/3', flush=True)
    report('progress', phase='train', step=step, steps=3, printed=True)
act()
"""


def test_progress_of_rank_0_its_traceback_and_the_explanation_are_printed_once(orch: Orch, tmp_path: Path) -> None:
    process = expect_exit(orch("train", write_script(tmp_path, FAIL), "--ppn", "1"), 1)
    output = process.stdout + process.stderr
    assert output.count("Traceback (most recent call last)") == 1
    assert process.stderr.count("No such file or directory: 'data/x.csv'") == 2, "by the rank, and as the cause"
    assert process.stderr.count("data/x.csv does not exist where the rank runs") == 1
    assert "apex" not in process.stderr, "the script has handled that error"
    assert process.stdout.count("step 3/3") == 1
    assert "train: " not in process.stderr
    run = last_run(tmp_path)
    assert f"run: {run.name} in {run.parent}\n" in process.stderr
    assert output.count(run.name) == 3, "of the run, its logs and how to resume it"
    assert output.count("line 2, in act") == 2


def test_array_says_that_its_runs_share_the_current_folder(orch: Orch, tmp_path: Path) -> None:
    command = ("train", write_script(tmp_path, ""), "--array", "lr=1,2", "--dry-run")
    for options, count in (((), 1), (("--project", str(tmp_path)), 0)):
        assert expect_exit(orch(*command, *options)).stderr.count("find each other's files") == count
