"""Run ranks over the fabrics that this machine has."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from orchestrator.load.clusters import local_facts
from tests.local.runs import Orch, expect_exit, last_run, rank_log, write_script
from tests.local.workspaces import Workspace

SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group()
total = torch.ones(1 << 18)
dist.all_reduce(total)
assert (total == dist.get_world_size()).all()
print("over", dist.get_backend(), os.environ["FI_PROVIDER"], flush=True)
"""


def test_ranks_of_one_host_use_the_requested_fabric(orch: Orch, tmp_path: Path) -> None:
    process = expect_exit(orch("train", write_script(tmp_path, SCRIPT), "--ppn", "2", "--fabric", "shm", "-v"))
    assert "fabric: shm (requested)" in process.stdout + process.stderr
    run = last_run(tmp_path)
    assert all("over ccl shm" in rank_log(run, rank) for rank in (0, 1))
    decisions = json.loads((run / "run.json").read_text())["decisions"]
    assert {"topic": "fabric", "value": "shm", "reason": "requested"} in decisions


def test_two_hosts_use_a_fabric_that_both_have_or_report_what_is_missing(two_hosts: Workspace) -> None:
    """Request psm3 over sockets; tests/prepare installs its libraries, and all other tests of two hosts use tcp."""
    if missing := local_facts(sys.executable).fabrics["psm3"]:
        assert "CI" not in os.environ, missing
        script = write_script(two_hosts.folder, SCRIPT)
        process = two_hosts.orch("train", script, *two_hosts.options, "--fabric", "psm3", "--dry-run")
        assert f"--fabric psm3: node0: {missing}; node1: {missing}." in process.stderr
        return
    cell = two_hosts.train_text(SCRIPT, "--fabric", "psm3")
    assert all("over ccl psm3" in log for log in cell.logs.values())


def test_fabric_that_this_machine_lacks_is_refused(orch: Orch) -> None:
    facts = local_facts(sys.executable)
    if not facts.fabrics["efa"]:
        pytest.skip("this machine has an EFA device")
    process = expect_exit(orch("train", "bert-qa", "--fabric", "efa", "--dry-run"), 2)
    assert f"--fabric efa: node0: {facts.fabrics['efa']}." in process.stderr
