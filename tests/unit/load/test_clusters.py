"""The variables of an inventory that hosts share, and the facts of this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.load.clusters import Limits, local_node, mpi_implementations
from orchestrator.operations import train
from orchestrator.planning.request import TrainRequest, parse_nodes


def test_limits_of_the_inventory_replace_the_defaults() -> None:
    limits = load.limits("a", {"orch_limits": {"disk_gb": 1, "skew_seconds": "60"}})
    assert limits == Limits(disk_gb=1.0, skew_seconds=60.0)
    assert load.limits("a", {}) == Limits()


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
    recorded = planned.array[1].request
    assert (str(recorded.nodes), recorded.exclude) == ("1", "n2,n4")


def test_all_hosts_need_the_same_mpi_implementations() -> None:
    assert mpi_implementations({"a": {"orch_mpi": ["openmpi", "intel"]}}) == ("openmpi", "intel")
    with pytest.raises(RequestError, match=r"differs .*a: mpich; b: none"):
        mpi_implementations({"a": {"orch_mpi": "mpich"}, "b": {}})
    with pytest.raises(RequestError, match="unknown orch_mpi 'mpic'"):
        mpi_implementations({"a": {"orch_mpi": "mpic"}})


def test_missing_stack_of_this_machine_is_installed_by_setup() -> None:
    stacks = ("current", "torch-2.11")
    assert [local_node("node0", {}, stack).repair for stack in stacks] == [
        "`orch setup`",
        "`orch setup --stack torch-2.11`",
    ]
