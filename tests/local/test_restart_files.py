"""Restart runs of own scripts on two hosts, each of which has its own copy of the project."""

from __future__ import annotations

import pytest

from tests.local.workspaces import Workspace

# Rank 0 saves, all ranks load if the file exists; the second rank fails once.
SCRIPT = """
import os, pathlib, torch, torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group()
rank, saved = dist.get_rank(), pathlib.Path("out/saved.pt")
value = torch.load(saved) if saved.exists() else torch.zeros(1)
with open("log.txt", "a") as log:
    log.write(f"rank {rank} starts with {value.item():.0f}\\n")
print("RESULT", value.item(), len(pathlib.Path("log.txt").read_text().splitlines()))
dist.barrier()
if not value.item():
    if rank == 0:
        saved.parent.mkdir()
        torch.save(torch.ones(1), saved)
    dist.barrier()
    assert rank != 1, "fails once"
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_what_rank_0_saved_is_on_all_nodes_after_a_restart(two_hosts: Workspace, launcher: str) -> None:
    options = ("--launcher", launcher, "--backend", "gloo", "--max-restarts", "1")
    cell = two_hosts.train_text(SCRIPT, *options)
    assert [cell.logs[rank].rpartition("RESULT ")[2].splitlines()[0] for rank in (0, 1)] == ["1.0 2", "1.0 2"]
    run = cell.report["run_id"]
    news = two_hosts.orch("runs", "show", run).stdout
    assert "gave 2 files (log.txt, out/saved.pt)" in news
    assert "log.txt.node1.attempt-1" in news
    fetched = two_hosts.folder / f"fetched-{launcher}"
    assert two_hosts.orch("fetch", run, "--to", str(fetched)).returncode == 0
    assert (fetched / "node1/log.txt.node1.attempt-1").read_text() == "rank 1 starts with 0\n"
    assert (fetched / "node1/log.txt").read_text() == "rank 0 starts with 0\nrank 1 starts with 1\n"
    assert not (fetched / "node1/out").exists()
