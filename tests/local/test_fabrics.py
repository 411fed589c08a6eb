"""Run ranks over the fabrics that this machine has."""

from __future__ import annotations

import os
import sys

from orchestrator.load.clusters import local_facts
from tests.local.runs import write_script
from tests.local.workspaces import Workspace

SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group()
total = torch.ones(1 << 18)
dist.all_reduce(total)
assert (total == dist.get_world_size()).all()
print("over", dist.get_backend(), os.environ["FI_PROVIDER"], flush=True)
"""


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
