"""torchrun below the supervisor: its own restarts, its hostile arguments, and what it leaves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.conftest import HOSTILE
from tests.local.test_train import last_run, left_behind, log

Orch = Callable[..., subprocess.CompletedProcess[str]]
# Fails on rank 1 as often as its argument says; counted in a file.
FAILS = """
import os, pathlib, sys, time
import torch.distributed as dist
dist.init_process_group()
tries = pathlib.Path(os.environ["ORCH_RUN_DIR"], "tries")
dist.barrier()
if dist.get_rank() == 1:
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    if len(tries.read_text()) <= int(sys.argv[1]):
        raise ValueError("boom")
dist.barrier()
print("TRAINED", len(tries.read_text()))
"""


def train(orch: Orch, folder: Path, failures: int) -> subprocess.CompletedProcess[str]:
    (folder / "fails.py").write_text(FAILS)
    return orch("train", "fails.py", "--ppn", "2", "--launcher", "torchrun", "--backend", "gloo",
                "--max-restarts", "1", "--", str(failures))  # fmt: skip


def events(run: Path, kind: str) -> list[dict[str, object]]:
    lines = (run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_torchrun_starts_failed_ranks_again_itself(orch: Orch, tmp_path: Path) -> None:
    done = train(orch, tmp_path, failures=1)
    assert done.returncode == 0, done.stdout + done.stderr
    run = last_run(tmp_path)
    assert "TRAINED 2" in log(run, 0)
    assert len(events(run, "launched")) == 1, "the launcher was started once"
    (told,) = events(run, "restarting")
    assert told["after"]["rank"] == 1  # type: ignore[index]
    assert json.loads((run / "outcome.json").read_text())["state"] == "done"


def test_after_the_last_restart_the_failure_is_reported(orch: Orch, tmp_path: Path) -> None:
    done = train(orch, tmp_path, failures=9)
    assert done.returncode == 1
    assert "rank 1 on node0 exited with code 1" in done.stdout
    assert "ValueError: boom" in done.stdout
    run = last_run(tmp_path)
    assert (run / "tries").read_text() == "xx", "one restart, not one of ours and one of torchrun's"
    assert left_behind(run) == []


def test_hostile_arguments_arrive_unchanged(orch: Orch, tmp_path: Path) -> None:
    words = (*HOSTILE, "--run", "--no", "--nnodes=7", "--")
    (tmp_path / "show.py").write_text("import sys\nprint(repr(sys.argv[1:]))")
    for launcher in ("torchrun", "accelerate"):
        done = orch("train", "show.py", "--ppn", "1", "--launcher", launcher, "--", *words)
        assert done.returncode == 0, done.stderr
        assert log(last_run(tmp_path), 0).splitlines()[-1] == repr(list(words))
