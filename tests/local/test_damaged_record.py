"""A damaged record of one node, and the verbs of the others: behind a real sshd."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.local.runs import Orch, expect_exit
from tests.local.ssh_node import INVENTORY, TWO_RANKS, SshNode
from tests.local.test_hostile_node import GOOD, leave


@pytest.fixture
def damaged(ssh_node: SshNode, tmp_path: Path) -> SshNode:
    hosts = "".join(f"    {name}:\n      ansible_host: 127.0.0.1\n" for name in ("far", "broken"))
    (tmp_path / "lab.yaml").write_text(f"all:\n  hosts:\n{hosts}")
    (ssh_node.state / "nodes/broken.json").write_text("{")
    return ssh_node


def test_runs_of_other_nodes_are_found_shown_and_stopped(orch: Orch, damaged: SshNode) -> None:
    leave(damaged, GOOD)
    listed = orch("runs", *INVENTORY, "--json")
    assert [one["id"] for one in json.loads(listed.stdout)["runs"]] == [GOOD]
    assert (listed.returncode, listed.stderr.count("broken.json")) == (0, 1)
    for verb in (("attach", "last"), ("logs", "last"), ("report", "last"), ("stop", "last")):
        process = expect_exit(orch(*verb, *INVENTORY))
        assert "broken.json" in process.stderr, verb


def test_a_run_trains_on_the_others(orch: Orch, damaged: SshNode) -> None:
    process = expect_exit(orch("train", "own.py", *INVENTORY, *TWO_RANKS, "--nodes", "far"))
    assert "broken.json" in process.stdout + process.stderr
    refused = expect_exit(orch("train", "own.py", *INVENTORY, *TWO_RANKS), 2)
    assert "broken.json" in refused.stderr
    assert "orch provision" in refused.stderr


def test_what_could_not_be_cleaned_is_said(orch: Orch, damaged: SshNode) -> None:
    process = orch("clean", *INVENTORY, "--json")
    states = {node["node"]: node["state"] for node in json.loads(process.stdout)["nodes"]}
    assert states == {"far": "clean", "broken": "unreachable"}
    assert process.returncode == 1
