"""Check a fabric by a ping-pong between two hosts on this machine."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest
from orch_node.fabric import check
from orch_node.protocol.fabrics import Proof

from orchestrator.provisioning.probe import parse_fabrics
from tests.local.workspaces import Workspace
from tests.support.nodes_with_fabrics import INFINIBAND_CARD

KEY = "ab" * 32
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
from orch_node.fabric import check
request = check.parse_request(sys.stdin.read())
for fabric, rails in (("tcp", 1), ("tcp", 2)):
    print(json.dumps(check.values.record(check.check_fabric(request, fabric, request.members, rails))))
"""


def run_on_node0(workspace: Workspace, *arguments: str) -> str:
    """Run Python on node0 with a request to check verbs between both hosts, and return its output."""
    lab = workspace.lab
    assert lab is not None
    prefix = f"{lab.root}/stacks/current"
    request = {
        "launch": [f"{prefix}/bin/mpiexec.hydra", "-bootstrap", "ssh", "-iface", "eth0"],
        "program": [f"{prefix}/bin/python", f"{lab.root}/train/node.py"],
        "backend": "ccl",
        "key": KEY,
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
    command = shlex.join(["env", *assignments, f"{prefix}/bin/python", *arguments])
    process = subprocess.run(
        [*lab.ssh_command(lab.hosts[0]), command], input=json.dumps(request), capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_working_fabric_is_measured_with_one_and_two_ranks_per_host(two_hosts: Workspace) -> None:
    output = run_on_node0(two_hosts, "-c", CHECK.format(lib=f"{two_hosts.lab.root}/train/lib"))
    results = [Proof(**json.loads(line)) for line in output.splitlines()]
    assert [(result.failed, result.rails) for result in results] == [("", 1), ("", 2)]
    assert len({result.together for result in results}) == 1
    assert all(result.gbit > 0 and 0 < result.microseconds < 1e6 for result in results)


def test_fabric_without_devices_reports_the_reason(two_hosts: Workspace) -> None:
    """Request a card that does not exist: MPI fails, and TCP is not measured."""
    output = run_on_node0(two_hosts, f"{two_hosts.lab.root}/train/node.py", "check-fabric")
    results = parse_fabrics("node0", {"stdout": output})
    assert results.key == KEY
    assert [set(fabrics) for fabrics in results.nodes.values()] == [{"verbs"}] * 2
    result = results.nodes["node0"]["verbs"]
    assert (result.together, results.nodes["node1"]["verbs"]) == ("", result)
    assert "fi_getinfo() failed" in result.failed


def test_check_that_hangs_times_out() -> None:
    code, _, _ = check.run_with_timeout(["sh", "-c", "sleep 600 & wait"], {}, 0.2)
    assert code is None
    assert check.failure_reason("", None) == "timed out"


@pytest.mark.parametrize("output", ["", "no number", "a\x1b[31mb Error: x"], ids=["empty", "plain", "escapes"])
def test_failure_reason_is_printable(output: str) -> None:
    reason = check.failure_reason(output, 7)
    assert reason
    assert reason.isprintable()
