"""Real ranks over the fabrics that this machine has."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from orchestrator.load.clusters import local_facts
from tests.local.runs import Orch, expect_exit
from tests.local.workspaces import Workspace

SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group()
total = torch.ones(1 << 18)
dist.all_reduce(total)
assert (total == dist.get_world_size()).all()
print("over", dist.get_backend(), os.environ["FI_PROVIDER"], flush=True)
"""


@pytest.mark.parametrize(("fabric", "launcher"), [("shm", "mpirun"), ("psm3", "mpirun"), ("psm3", "torchrun")])
def test_ranks_talk_over_what_was_asked_for(fabric: str, launcher: str, orch: Orch, tmp_path: Path) -> None:
    """psm3 runs over sockets here, which needs libraries of the system: tests/prepare has them."""
    if missing := local_facts(sys.executable).fabrics[fabric]:
        assert "CI" not in os.environ, missing
        pytest.skip(f"{fabric}: {missing}")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = expect_exit(orch("train", str(script), "--ppn", "2", "--fabric", fabric, "--launcher", launcher, "-v"))
    assert f"fabric: {fabric} (requested)" in process.stdout + process.stderr
    (run,) = (tmp_path / "runs").glob("*-script-*")
    logs = [path.read_text() for path in sorted((run / "ranks").glob("*.log"))]
    assert len(logs) == 2
    assert all(f"over ccl {fabric}" in log for log in logs)
    decisions = json.loads((run / "run.json").read_text())["decisions"]
    assert {"topic": "fabric", "value": fabric, "reason": "requested"} in decisions


def test_two_hosts_talk_over_what_both_have_or_are_told_what_they_lack(two_hosts: Workspace) -> None:
    """tcp, without being asked for it, is what all other tests of two hosts talk over."""
    fabric = "psm3"
    script = two_hosts.folder / "talking.py"
    script.write_text(SCRIPT)
    if missing := local_facts(sys.executable).fabrics[fabric]:
        process = two_hosts.orch("train", str(script), *two_hosts.options, "--fabric", fabric, "--dry-run")
        assert f"--fabric {fabric}: node0: {missing}; node1: {missing}." in process.stderr
        return
    cell = two_hosts.train(str(script), "--fabric", fabric)
    assert all(f"over ccl {fabric}" in log for log in cell.logs.values())


def test_what_this_machine_lacks_is_refused(orch: Orch) -> None:
    facts = local_facts(sys.executable)
    if not facts.fabrics["efa"]:
        pytest.skip("this machine has an EFA device")
    process = expect_exit(orch("train", "bert-qa", "--fabric", "efa", "--dry-run"), 2)
    assert f"--fabric efa: node0: {facts.fabrics['efa']}." in process.stderr
