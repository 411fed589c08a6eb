"""Check what each rank measures of itself, also in a script without calls to orch."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import run_orch_in
from tests.local.runs import expect_exit, last_run, read_events, write_script

# Rank 1 is slow outside of backward(), in which DDP makes rank 0 wait for it.
SLOW_RANK = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
torch.manual_seed(42)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(80):
    if dist.get_rank() == 1:
        time.sleep(0.05)
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).mean()
    loss.backward()
    optimizer.step()
"""
# Later steps report their samples and loss.
NOTE = """
    if step >= 40:
        import orch_node
        orch_node.note(samples=2 * (step + 1), loss=loss.detach(), step=100 + step)
"""


def read_metrics(run: Path, rank: int) -> list[dict[str, Any]]:
    lines = (run / "ranks" / f"rank-{rank}.metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run of a script that calls orch only in the second half of its steps."""
    folder = tmp_path_factory.mktemp("metrics")
    script = write_script(folder, SLOW_RANK + NOTE)
    expect_exit(run_orch_in(folder, "train", script, "--ppn", "2", "--backend", "gloo"))
    return last_run(folder)


def test_metrics_have_steps_memory_and_cpu_time(finished_run: Path) -> None:
    for rank in (0, 1):
        lines = read_metrics(finished_run, rank)
        assert sum(line["steps"] for line in lines) == 80
        assert len(lines) >= 2
        assert statistics.median(line["seconds"] for line in lines[:-1]) > 0.9, "about one line per second"
        assert all(line["rss_bytes"] > 10**8 and line["cpu_seconds"] >= 0 for line in lines)
        assert lines[0]["loss"] is None, "the script has not called orch yet"
        times = [line["step_seconds"] for line in lines if line["step_seconds"]]
        assert statistics.median(times) > 0.04, "DDP makes each rank as slow as the slowest"
    work = [
        min(line["work_seconds"] for line in read_metrics(finished_run, rank) if line["step_seconds"])
        for rank in (0, 1)
    ]
    assert work[1] > 0.05 > work[0], "only the straggler's own work is slow, at any load"


def test_metrics_have_the_samples_and_loss_that_a_script_notes(finished_run: Path) -> None:
    lines = read_metrics(finished_run, 0)
    assert lines[-1]["step"] == 179
    assert isinstance(lines[-1]["loss"], float)
    speeds = [line["samples_per_second"] for line in lines if line["samples_per_second"]]
    assert 10 < statistics.median(speeds) < 45, "a step of 2 samples takes a little longer than 0.05 s"


def test_record_describes_script_stack_and_seeds(finished_run: Path) -> None:
    script = str(finished_run.parents[1] / "own.py")
    plan = json.loads((finished_run / "plan.json").read_text())
    assert plan["scripts"]["path"] == script
    assert plan["stack"] == "current"
    assert list(plan["fingerprints"].values()) == ["node0"]
    assert script in plan["command"]["argv"]
    seeds = {event["rank"]: event["torch_seed"] for event in read_events(finished_run, "first_step")}
    assert seeds == {0: 42, 1: 42}
