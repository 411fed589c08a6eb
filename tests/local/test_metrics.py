"""What each rank measures of itself, also for a script that knows nothing of orch."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import orch_in
from tests.local.runs import expect_exit, last_run

# Rank 1 is slow outside backward(); DDP makes rank 0 wait for it inside.
SLOW = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
torch.manual_seed(42)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    if dist.get_rank() == 1:
        time.sleep(0.05)
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).mean()
    loss.backward()
    optimizer.step()
    TELL
"""
TELL = "import orch_node; orch_node.note(samples=2 * (step + 1), loss=loss.detach(), step=100 + step)"


def lines(run: Path, rank: int) -> list[dict[str, Any]]:
    text = (run / "ranks" / f"rank-{rank}.metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def train(folder: Path, tell: str) -> Path:
    (folder / "slow.py").write_text(SLOW.replace("TELL", tell))
    words = ("train", "slow.py", "--ppn", "2", "--backend", "gloo")
    expect_exit(orch_in(folder, *words))
    return last_run(folder)


@pytest.fixture(scope="module")
def unmodified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("unmodified"), "pass")


def test_an_unmodified_script_has_steps_memory_and_cpu_time(unmodified: Path) -> None:
    run = unmodified
    for rank in (0, 1):
        found = lines(run, rank)
        assert sum(line["steps"] for line in found) == 40
        assert len(found) >= 2
        assert all(line["seconds"] > 0.9 for line in found[:-1]), "about one a second"
        assert all(line["rss_bytes"] > 10**8 and line["cpu_seconds"] >= 0 for line in found)
        assert all(line["loss"] is None for line in found)
        times = [line["step_seconds"] for line in found if line["step_seconds"]]
        assert min(times) > 0.04, "DDP makes every rank as slow as the slowest"
    work = [min(line["work_seconds"] for line in lines(run, rank) if line["step_seconds"]) for rank in (0, 1)]
    assert work[1] > 0.05 > work[0], "only the straggler is slow in its own work, at any load"


def test_a_script_may_tell_what_cannot_be_seen(tmp_path: Path) -> None:
    run = train(tmp_path, TELL)
    found = lines(run, 0)
    assert found[-1]["step"] == 139
    assert isinstance(found[-1]["loss"], float)
    speeds = [line["samples_per_second"] for line in found if line["samples_per_second"]]
    assert 10 < statistics.median(speeds) < 45, "2 samples in a bit more than 0.05 s"


def test_the_record_says_what_ran(unmodified: Path) -> None:
    run, script = unmodified, unmodified.parents[1] / "slow.py"
    plan = json.loads((run / "plan.json").read_text())
    assert plan["scripts"]["path"] == str(script)
    assert plan["stack"] == "current"
    assert list(plan["fingerprints"].values()) == ["node0"]
    assert str(script) in plan["command"]["argv"]
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    seeds = {e["rank"]: e["torch_seed"] for e in events if e["event"] == "first_step"}
    assert seeds == {0: 42, 1: 42}
