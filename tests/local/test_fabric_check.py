"""Check a fabric by a ping-pong between two hosts on this machine, and run ranks over its fabrics."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

from orch_node import fabric
from orch_node.protocol.fabrics import Proof

from orchestrator.load.clusters import local_facts
from tests.local.runs import expect_exit, write_script
from tests.local.workspaces import Workspace
from tests.support.nodes_with_fabrics import INFINIBAND_CARD

# The role `fabric` sets these variables.
ENVIRONMENT = {
    "MASTER_PORT": "29541",
    "I_MPI_PIN": "0",
    "I_MPI_FABRICS": "ofi",
    "OMP_NUM_THREADS": "1",
    "CCL_WORKER_OFFLOAD": "0",
}
CHECK = """
import json, sys
sys.path.append({lib!r})
from orch_node import fabric
request = fabric.values.parse(fabric.Request, sys.stdin.read(), "the request")
print(json.dumps(fabric.values.record(fabric.check_fabric(request, "tcp", request.members, 2))))
"""


def test_working_fabric_is_measured_with_two_ranks_per_host(two_hosts: Workspace) -> None:
    """Run the check on node0. The role checks one rank per host; tests/roles/test_fabric.py has no devices."""
    lab = two_hosts.lab
    prefix = f"{lab.root}/stacks/current"
    request = {
        "launch": [f"{prefix}/bin/mpiexec.hydra", "-bootstrap", "ssh", "-iface", "eth0"],
        "program": [f"{prefix}/bin/python", f"{lab.root}/train/node.py"],
        "backend": "ccl",
        "key": "ab" * 32,
        "seconds": 120.0,
        "names": list(lab.addresses),
        "addresses": list(lab.addresses.values()),
        "fabrics": [{"verbs": ""}] * 2,
        "devices": [[INFINIBAND_CARD]] * 2,
    }
    variables = {
        **ENVIRONMENT,
        "PATH": f"{prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": f"{lab.root}/train/ssh",
    }
    assignments = [f"{name}={value}" for name, value in variables.items()]
    command = shlex.join(["env", *assignments, f"{prefix}/bin/python", "-c", CHECK.format(lib=f"{lab.root}/train/lib")])
    ssh = [*lab.ssh_command(lab.hosts[0]), command]
    process = expect_exit(subprocess.run(ssh, input=json.dumps(request), capture_output=True, text=True))
    result = Proof(**json.loads(process.stdout))
    assert (result.failed, result.rails, len(result.together)) == ("", 2, 64)
    assert result.gbit > 0
    assert 0 < result.microseconds < 1e6


def test_check_that_hangs_times_out() -> None:
    code, _ = fabric.run_with_timeout(["sh", "-c", "sleep 600 & wait"], {}, 0.2)
    assert fabric.failure_reason("", code) == "timed out"


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
