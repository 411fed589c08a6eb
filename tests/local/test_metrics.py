"""Check what each rank measures of itself, also in a script without calls to orch."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from tests.local.runs import Orch, expect_exit, last_run, read_events, write_script

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


def test_metrics_of_a_script_that_calls_orch_in_the_second_half_of_its_steps(orch: Orch, tmp_path: Path) -> None:
    expect_exit(orch("train", write_script(tmp_path, SLOW_RANK + NOTE), "--ppn", "2", "--backend", "gloo"))
    run, work = last_run(tmp_path), []
    for rank in (0, 1):
        lines = read_metrics(run, rank)
        assert sum(line["steps"] for line in lines) == 80
        assert len(lines) >= 2
        assert statistics.median(line["seconds"] for line in lines[:-1]) > 0.9, "about one line per second"
        assert all(line["rss_bytes"] > 10**8 and line["cpu_seconds"] >= 0 for line in lines)
        assert lines[0]["loss"] is None, "the script has not called orch yet"
        times = [line["step_seconds"] for line in lines if line["step_seconds"]]
        assert statistics.median(times) > 0.04, "DDP makes each rank as slow as the slowest"
        work.append(min(line["work_seconds"] for line in lines if line["step_seconds"]))
    assert work[1] > 0.05 > work[0], "only the straggler's own work is slow, at any load"
    lines = read_metrics(run, 0)
    assert lines[-1]["step"] == 179
    assert isinstance(lines[-1]["loss"], float)
    speeds = [line["samples_per_second"] for line in lines if line["samples_per_second"]]
    # The first of these lines has all samples since the start, and the last one a part of a second.
    assert 10 < speeds[1] < 45, "a step of 2 samples takes a little longer than 0.05 s"
    assert read_events(run, "progress")[-1]["step"] == 80
    assert {event["rank"]: event["torch_seed"] for event in read_events(run, "first_step")} == {0: 42, 1: 42}
