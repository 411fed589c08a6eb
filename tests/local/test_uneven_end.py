"""End the script of one rank while another rank waits for it in a collective."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.runs import Orch, expect_exit, last_run, run_processes, write_script

# Rank 0 has one batch more than rank 1.
SCRIPT = """
import torch
import torch.distributed as dist
dist.init_process_group()
for batch in range(4 - dist.get_rank()):
    dist.all_reduce(torch.ones(1))
print("TRAINED")
"""
REASON = "rank 1 ended the script after 3 collectives, but node0 rank 0 waits in collective 4"


@pytest.mark.parametrize(
    ("launcher", "backend"),
    [("mpirun", "ccl"), ("torchrun", "ccl"), ("accelerate", "ccl"), ("mpirun", "gloo")],
    ids=["mpirun-ccl", "torchrun-ccl", "accelerate-ccl", "mpirun-gloo"],
)
def test_script_that_ends_early_on_one_rank_is_the_reason_for_the_failure(
    orch: Orch, tmp_path: Path, launcher: str, backend: str
) -> None:
    options = ("--ppn", "2", "--launcher", launcher, "--backend", backend, "--stall-timeout", "150")
    process = expect_exit(orch("train", write_script(tmp_path, SCRIPT), *options), 1)
    assert REASON in process.stdout
    assert "cure: Give every rank the same number of batches" in process.stdout
    assert run_processes(last_run(tmp_path)) == []


MORE_SENDS = """
import time
import torch
import torch.distributed as dist
dist.barrier()
if dist.get_rank() == 0:
    works = [dist.isend(torch.ones(1), 1) for _ in range(3)]
    time.sleep(13)  # longer than orch lets a rank wait for an ended one
print("TRAINED")
"""


def test_rank_with_more_sends_than_others_may_continue_after_their_end(orch: Orch, tmp_path: Path) -> None:
    process = expect_exit(orch("train", write_script(tmp_path, MORE_SENDS), "--ppn", "2", "--backend", "gloo"))
    assert "needs all ranks" not in process.stdout + process.stderr
