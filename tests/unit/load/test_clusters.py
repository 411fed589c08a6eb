"""The variables of an inventory that hosts share, and the facts of this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.load.clusters import local_facts, mpi_implementations
from orchestrator.model.cluster import GIB, Limits
from orchestrator.operations import train
from orchestrator.planning.request import TrainRequest, parse_nodes
from orchestrator.stacks.stack import Stack
from tests.support.files import write_program


def test_limits_of_the_inventory_replace_the_defaults() -> None:
    limits = load.limits("a", {"orch_limits": {"disk_gb": 1, "skew_seconds": "60"}})
    assert limits == replace(Limits(), disk=GIB, skew=60.0)
    assert load.limits("a", {}) == Limits()


def test_invalid_limit_is_rejected_with_its_name() -> None:
    for limits, message in (
        ({"disc_gb": 1}, "orch_limits.disc_gb of a: unknown key."),
        ({"disk_gb": "much"}, "orch_limits.disk_gb of a: expected a valid number"),  # text
        ([1], "orch_limits of a: "),  # list
    ):
        with pytest.raises(RequestError, match=message) as exc_info:
            load.limits("a", {"orch_limits": limits})
        assert "disk_gb" in exc_info.value.hint


def test_fabrics_of_this_machine_are_queried_once_when_they_are_needed(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    write_program(tmp_path / "bin/libfabric/fi_info", f"#!/bin/sh\necho called >> {calls}\nprintf 'tcp:\\n'\n")
    result = local_facts(str(tmp_path / "bin/python")).fabrics
    assert not calls.exists()
    assert (result["tcp"], result["shm"]) == ("", "no such provider")
    assert len(result) == len(dict(result))
    assert calls.read_text().splitlines() == ["called"]


def test_nodes_of_an_array_limit_where_its_runs_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv)\n")
    hosts = {key: {"ansible_connection": "local"} for key in ("n1", "n2", "n3", "n4")}
    (tmp_path / "lab.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    request = TrainRequest(
        recipe=str(tmp_path / "train.py"),
        inventory=str(tmp_path / "lab.yml"),
        nodes=parse_nodes("n[1-3]"),
        exclude="n2",
    )
    planned = train.plan(replace(request, ppn=1, array=("lr=1,2",), project="none"))
    assert [run.layout.world_size for run in planned.array] == [1, 1]
    recorded = planned.array[1].origin.request
    assert (str(recorded.nodes), recorded.exclude) == ("1", "n2,n4")


def test_all_hosts_need_the_same_mpi_implementations(test_stack: Stack) -> None:
    assert mpi_implementations({"a": {}, "b": {}}) == ()
    assert mpi_implementations({"a": {"orch_mpi": "mpich"}}) == ("mpich",)
    implementations = mpi_implementations({"a": {"orch_mpi": ["openmpi", "intel"]}})
    assert implementations == ("openmpi", "intel")
    assert test_stack.with_mpi(implementations).requirements == {"torch": "2.13.0", "openmpi": "5.0.11"}
    with pytest.raises(RequestError, match=r"differs .*a: mpich, b: none"):
        mpi_implementations({"a": {"orch_mpi": "mpich"}, "b": {}})
    with pytest.raises(RequestError, match="unknown orch_mpi 'mpic'") as caught:
        mpi_implementations({"a": {"orch_mpi": "mpic"}})
    assert "mpich" in caught.value.hint
