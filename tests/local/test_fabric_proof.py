"""The ping-pong that proves a fabric, between two hosts: network namespaces on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_node.fabric import prove
from orch_node.fabric.prove import Member, Request
from orch_node.protocol.fabrics import Device

from orchestrator.paths import TRAIN
from orchestrator.provisioning import proofs
from tests.conftest import mpi_here, need

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")
HOSTS = ("10.213.9.1", "10.213.9.2")
KEY = "ab" * 32
# Instead of ssh: the last words are a host and a command, which runs in that host's namespace.
LAUNCH = """#!/bin/sh
while [ "${1#10.213.9.}" = "$1" ]; do shift; done
namespace=%s-${1#10.213.9.}
shift
exec ip netns exec "$namespace" sh -c "$*"
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """What starts mpiexec on the first host, and its proxies on both."""
    need("ip")
    mpiexec = mpi_here("intel")["intel"]
    name = f"orch{os.getpid()}"
    ends = (f"o{os.getpid()}p1", f"o{os.getpid()}p2")
    spaces = (f"{name}-1", f"{name}-2")
    try:
        for space in spaces:
            ip("netns", "add", space)
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for end, space, host in zip(ends, spaces, HOSTS, strict=True):
            ip("link", "set", end, "netns", space)
            ip("-n", space, "link", "set", end, "name", "net0")
            ip("-n", space, "addr", "add", f"{host}/24", "dev", "net0")
            ip("-n", space, "link", "set", "net0", "up")
            ip("-n", space, "link", "set", "lo", "up")
        starter = tmp_path / "launch"
        starter.write_text(LAUNCH % name)
        starter.chmod(0o755)
        reach = ("-bootstrap", "ssh", "-bootstrap-exec", str(starter), "-iface", "net0")
        yield ("ip", "netns", "exec", spaces[0], mpiexec, *reach)
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


@pytest.fixture
def request_(launch: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> Request:
    programs = str(Path(sys.executable).parent)
    for variable, value in {
        "PATH": f"{programs}:{os.environ['PATH']}", "MASTER_PORT": "29541", "I_MPI_PIN": "0",
        "I_MPI_FABRICS": "ofi", "OMP_NUM_THREADS": "1", "CCL_WORKER_OFFLOAD": "0",
    }.items():  # fmt: skip
        monkeypatch.setenv(variable, value)
    card = Device(name="mlx5_0", driver="mlx5_core", link="InfiniBand", interface="ib0",
                  speed=100_000, numa=0, active=True)  # fmt: skip
    return Request(
        launch=launch,
        program=(sys.executable, str(TRAIN / "node.py")),
        backend="ccl",
        key=KEY,
        seconds=120.0,
        members=tuple(
            Member(name=f"node{index}", address=host, fabrics={"verbs": ""}, devices=(card,))
            for index, host in enumerate(HOSTS)
        ),
    )


def test_what_carries_traffic_is_measured(request_: Request) -> None:
    proof = prove.trial(request_, "tcp", request_.members, 1)
    assert proof.failed == ""
    assert len(proof.together) == 64
    assert proof.gbit > 0
    assert 0 < proof.microseconds < 1e6
    assert prove.trial(request_, "tcp", request_.members[::-1], 2).gbit > 0


def test_what_does_not_is_told_in_words(request_: Request) -> None:
    """The card is only said to be there: MPI finds none, and nothing else is tried."""
    found = prove.prove(request_)
    assert [set(proofs) for proofs in found.values()] == [{"verbs"}] * 2
    proof = found["node0"]["verbs"]
    assert (proof.together, found["node1"]["verbs"]) == ("", proof)
    assert "fi_getinfo() failed" in proof.failed


def test_the_program_answers_what_a_record_takes(request_: Request) -> None:
    said = prove.values.record(request_)
    members = said.pop("members")
    keys = {"names": "name", "addresses": "address", "fabrics": "fabrics", "devices": "devices"}
    lists = {name: [one[key] for one in members] for name, key in keys.items()}
    text = json.dumps({**said, **lists})
    assert prove.request_of(text) == request_
    command = [sys.executable, str(TRAIN / "node.py"), "prove"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = proofs.parse("node0", {"stdout": done.stdout})
    assert "fi_getinfo() failed" in answer.nodes["node1"]["verbs"].failed
    assert answer.key == KEY


def test_a_trial_that_hangs_is_ended(request_: Request) -> None:
    code, _, _ = prove.ended(["sh", "-c", "sleep 600 & wait"], {}, 0.2)
    assert code is None
    assert prove.reason("", None) == "no answer in time"
