"""Tests for orchestrator.load.clusters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.load.clusters import local_facts
from orchestrator.operations import train
from orchestrator.planning.request import TrainRequest, parse_nodes
from tests.support.files import write_program


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
