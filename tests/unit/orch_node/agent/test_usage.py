"""Check what a node reports about who uses it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from pathlib import Path

import pytest
from orch_node.agent import usage
from orch_node.agent.core_claims import Claims
from orch_node.protocol import values
from orch_node.protocol.agent import Claim
from orch_node.protocol.node_reports import NodeUsage

from tests.support.supervised_runs import NODE_PROGRAM


def test_usage_names_the_runs_that_hold_cores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claims = tmp_path / "claims"
    first, second = Claims(claims), Claims(claims)
    assert first.take(Claim(run="train", run_dir="", cpus=(9601, 9600))) == ()
    assert second.take(Claim(run="ended", run_dir="", cpus=(9602,))) == ()
    second.release("ended")
    usage.main([str(claims)])
    result = values.read(NodeUsage, json.loads(capsys.readouterr().out), "usage")
    assert [(held.run, held.cpus) for held in result.reserved if held.cpus >= (9600,)] == [("train", (9600, 9601))]
    assert 0 < result.memory_available <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    first.release("train")


def test_usage_waits_for_a_run_that_is_taking_cores(tmp_path: Path) -> None:
    claims = Claims(tmp_path / "claims")
    claims.take(Claim(run="other", run_dir="", cpus=(9600,)))
    new = claims.folder / "train.1-1.json"
    with (claims.folder / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        new.touch()  # its claim is written and locked after that
        reading = subprocess.Popen([*NODE_PROGRAM, "usage", str(tmp_path / "claims")], stdout=subprocess.DEVNULL)
        with pytest.raises(subprocess.TimeoutExpired):
            reading.wait(3)
        assert new.exists()
    assert reading.wait(30) == 0
    claims.release("other")


def test_node_without_runs_has_no_reserved_cores(tmp_path: Path) -> None:
    assert [held for held in usage.node_usage(tmp_path / "missing").reserved if "(user " not in held.run] == []
