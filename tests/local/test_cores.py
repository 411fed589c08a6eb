"""The main thread, the other threads and all processes of a rank may use all cores of the rank, and no others."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.local.runs import Orch, expect_exit, last_run, rank_log, write_script

SCRIPT = """
import json, os, subprocess, sys, time
from pathlib import Path

import torch
import torch.distributed as dist


def cores(task):
    lines = (Path(task) / "status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list"))


if __name__ == "__main__":
    torch.ones(1000, 1000) @ torch.ones(1000, 1000)  # a parallel region
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    work.wait()
    work.get_future().wait()
    show = [sys.executable, "-c", "import os; print(','.join(map(str, sorted(os.sched_getaffinity(0)))))"]
    time.sleep(1)  # until the threads of the backend have their names
    found = {(task / "comm").read_text().strip(): cores(task) for task in Path("/proc/self/task").iterdir()}
    numbers = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
    print("FOUND", json.dumps({
        "threads": torch.get_num_threads(), "cores": found, "subprocess": numbers,
        "tokenizers": os.environ.get("TOKENIZERS_PARALLELISM"),
    }), flush=True)
"""
USABLE = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(USABLE) < 2, reason="needs two cores")
def test_all_that_a_rank_starts_may_use_all_of_its_cores(tmp_path: Path, orch: Orch) -> None:
    expect_exit(orch("train", write_script(tmp_path, SCRIPT), "--ppn", "1", "--backend", "ccl"))
    lines = rank_log(last_run(tmp_path), 0).splitlines()
    result = json.loads(next(line for line in lines if line.startswith("FOUND")).removeprefix("FOUND "))
    numbers = [int(number) for number in result["subprocess"].split(",")]
    assert len(numbers) == result["threads"] > 1
    assert set(numbers) <= set(USABLE)
    assert len(set(result["cores"].values())) == 1, result
    assert set(result["cores"].values()) <= {f"{numbers[0]}-{numbers[-1]}", result["subprocess"]}
    assert "ccl-comm" in result["cores"]
    assert result["tokenizers"] is None
