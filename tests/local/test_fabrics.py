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


@pytest.mark.parametrize(("fabric", "launcher"), [("shm", "mpirun"), ("psm3", "torchrun")])
def test_ranks_use_the_requested_fabric(fabric: str, launcher: str, orch: Orch, tmp_path: Path) -> None:
    """Run psm3 over sockets; tests/prepare installs the system libraries that it needs."""
    if missing := local_facts(sys.executable).fabrics[fabric]:
        assert "CI" not in os.environ, missing
        pytest.skip(f"{fabric}: {missing}")
    options = ("--ppn", "2", "--fabric", fabric, "--launcher", launcher, "-v")
    process = expect_exit(orch("train", write_script(tmp_path, SCRIPT), *options))
    assert f"fabric: {fabric} (requested)" in process.stdout + process.stderr
    run = last_run(tmp_path)
    assert all(f"over ccl {fabric}" in rank_log(run, rank) for rank in (0, 1))
    decisions = json.loads((run / "run.json").read_text())["decisions"]
    assert {"topic": "fabric", "value": fabric, "reason": "requested"} in decisions


def test_two_hosts_use_a_fabric_that_both_have_or_report_what_is_missing(two_hosts: Workspace) -> None:
    """Request psm3; all other tests of two hosts use tcp, the default."""
    if missing := local_facts(sys.executable).fabrics["psm3"]:
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
