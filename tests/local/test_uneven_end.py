"""End the script of one rank while another rank waits for it in a collective."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.runs import Orch, expect_exit, last_run, rank_log, run_processes, write_script

# Rank 0 has one batch more than rank 1.
SCRIPT = """
import torch
import torch.distributed as dist
dist.init_process_group()
group = dist.new_group([0, 1])
for batch in range(4 - dist.get_rank()):
    dist.all_reduce(torch.ones(1), group=group)
print("TRAINED")
"""


def test_script_that_ends_early_on_one_rank_is_the_reason_for_the_failure(orch: Orch, tmp_path: Path) -> None:
    options = ("--ppn", "2", "--backend", "ccl", "--stall-timeout", "150")
    process = expect_exit(orch("train", write_script(tmp_path, SCRIPT), *options), 1)
    reason = "rank 1 ended the script after 3 collectives of the group of ranks 0-1, but node0 rank 0 waits in "
    assert reason in process.stderr
    assert "hint: Give every rank the same number of batches" in process.stderr
    assert run_processes(last_run(tmp_path)) == []


EXIT = """
import ctypes, os, time
import torch
import torch.distributed as dist
pid = torch.tensor([os.getpid()])
dist.broadcast(pid, src=1)
for batch in range(3):
    dist.all_reduce(torch.ones(1))
"""
EXIT_EARLY = f"{EXIT}\nif dist.get_rank() == 1:\n    END\ndist.all_reduce(torch.ones(1))\n"
# Rank 0 ends after the process of rank 1.
EXIT_AT_END = f"""{EXIT}
if dist.get_rank() == 1:
    os._exit(0)
while os.path.exists(f"/proc/{{pid.item()}}") and open(f"/proc/{{pid.item()}}/stat").read().split()[2] != "Z":
    time.sleep(0.1)
time.sleep(1)
print("SAVED", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("launcher", "end", "reason"),
    [("torchrun", "os._exit(0)", "(exit code 0) after 4"), ("mpirun", "ctypes.CDLL(None)._exit(0)", "(exit code 0)")],
)
def test_rank_that_exits_early_is_the_reason(orch: Orch, tmp_path: Path, launcher: str, end: str, reason: str) -> None:
    script = write_script(tmp_path, EXIT_EARLY.replace("END", end))
    process = expect_exit(orch("train", script, "--ppn", "2", "--launcher", launcher, "--stall-timeout", "150"), 1)
    assert f"failed: node0 rank 1 ended without finishing the script {reason}" in process.stderr
    assert "hint: End the script on every rank at the same place" in process.stderr
    assert run_processes(last_run(tmp_path)) == []


def test_ranks_may_exit_at_the_end_of_their_script(orch: Orch, tmp_path: Path) -> None:
    process = expect_exit(orch("train", write_script(tmp_path, EXIT_AT_END), "--ppn", "2", "--stall-timeout", "100"))
    assert "done in" in process.stderr
    assert "SAVED" in rank_log(last_run(tmp_path), 0)
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


EXIT_HANDLERS = """
import atexit, pickle, threading
import torch
import torch.distributed as dist
class Model:
    pass
dist.init_process_group()
atexit.register(dist.destroy_process_group)
def add():
    ranks = torch.ones(1)
    dist.all_reduce(ranks)
    print("ADDED", ranks.item(), len(pickle.dumps(Model())))
atexit.register(add)
def save():
    threading.main_thread().join()
    print("SAVED", len(pickle.dumps(Model())))
threading.Thread(target=save).start()
"""


@pytest.mark.parametrize("backend", ["ccl", "gloo"])
def test_exit_handlers_may_use_and_destroy_the_group(orch: Orch, tmp_path: Path, backend: str) -> None:
    process = expect_exit(orch("train", write_script(tmp_path, EXIT_HANDLERS), "--ppn", "2", "--backend", backend))
    assert "atexit" not in process.stdout + process.stderr
    logs = [rank_log(last_run(tmp_path), rank) for rank in (0, 1)]
    assert all("ADDED 2.0" in log and "SAVED" in log for log in logs), logs
