"""The ping-pong that proves a fabric, between two hosts on this machine."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest
from orch_node.fabric import prove

from orchestrator.provisioning import fabric_checks
from tests.local.grounds import Ground

KEY = "ab" * 32
CARD = {
    "name": "mlx5_0",
    "driver": "mlx5_core",
    "link": "InfiniBand",
    "interface": "ib0",
    "speed": 100_000,
    "numa": 0,
    "active": True,
}
# As the role `fabric` sets them.
ENVIRONMENT = {
    "MASTER_PORT": "29541",
    "I_MPI_PIN": "0",
    "I_MPI_FABRICS": "ofi",
    "OMP_NUM_THREADS": "1",
    "CCL_WORKER_OFFLOAD": "0",
}
TRIAL = """
import json, sys
sys.path.append({lib!r})
from orch_node.fabric import prove
request = prove.request_of(sys.stdin.read())
for fabric, rails in (("tcp", 1), ("tcp", 2)):
    print(json.dumps(prove.values.record(prove.trial(request, fabric, request.members, rails))))
"""


def on_node0(ground: Ground, *words: str) -> str:
    """What Python there prints, given a request to try verbs between both hosts."""
    lab = ground.lab
    assert lab is not None
    prefix = f"{lab.root}/stacks/current"
    request = {
        "launch": [f"{prefix}/bin/mpiexec.hydra", "-bootstrap", "ssh", "-iface", "eth0"],
        "program": [f"{prefix}/bin/python", f"{lab.root}/train/node.py"],
        "backend": "ccl",
        "key": KEY,
        "seconds": 120.0,
        "names": list(lab.names),
        "addresses": list(lab.names.values()),
        "fabrics": [{"verbs": ""}] * 2,
        "devices": [[CARD]] * 2,
    }
    reach = f"-F {lab.root}/ssh/config"
    given = {
        **ENVIRONMENT,
        "PATH": f"{prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": reach,
    }
    pairs = [f"{name}={value}" for name, value in given.items()]
    command = shlex.join(["env", *pairs, f"{prefix}/bin/python", *words])
    done = subprocess.run(
        [*lab.reach(lab.hosts[0]), command], input=json.dumps(request), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_carries_traffic_is_measured(two: Ground) -> None:
    """With one rank on each host, and with two."""
    assert two.lab is not None
    said = on_node0(two, "-c", TRIAL.format(lib=f"{two.lab.root}/train/lib"))
    found = [prove.Proof(**json.loads(line)) for line in said.splitlines()]
    assert [(proof.failed, proof.rails) for proof in found] == [("", 1), ("", 2)]
    assert len({proof.together for proof in found}) == 1
    assert all(proof.gbit > 0 and 0 < proof.microseconds < 1e6 for proof in found)


def test_what_does_not_is_told_in_words(two: Ground) -> None:
    """The card is only said to be there: MPI finds none, and TCP is not measured for nothing."""
    assert two.lab is not None
    said = on_node0(two, f"{two.lab.root}/train/node.py", "prove")
    answer = fabric_checks.parse_results("node0", {"stdout": said})
    assert answer.key == KEY
    assert [set(found) for found in answer.nodes.values()] == [{"verbs"}] * 2
    proof = answer.nodes["node0"]["verbs"]
    assert (proof.together, answer.nodes["node1"]["verbs"]) == ("", proof)
    assert "fi_getinfo() failed" in proof.failed


def test_a_trial_that_hangs_is_ended() -> None:
    code, _, _ = prove.ended(["sh", "-c", "sleep 600 & wait"], {}, 0.2)
    assert code is None
    assert prove.reason("", None) == "no answer in time"


@pytest.mark.parametrize("said", ["", "no number", "a\x1b[31mb Error: x"])
def test_a_reason_is_a_line_for_a_terminal(said: str) -> None:
    words = prove.reason(said, 7)
    assert words
    assert words.isprintable()
