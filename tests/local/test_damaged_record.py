"""A damaged record of one node, and the verbs of the others: behind a real sshd."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local.test_hostile_node import GOOD, leave
from tests.local.test_ssh_nodes import RANKS, WHERE, Site, site

__all__ = ["site"]
Orch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def damaged(site: Site, tmp_path: Path) -> Site:
    hosts = "".join(f"    {name}:\n      ansible_host: 127.0.0.1\n" for name in ("far", "broken"))
    (tmp_path / "lab.yaml").write_text(f"all:\n  hosts:\n{hosts}")
    (site.state / "nodes/broken.json").write_text("{")
    return site


def test_runs_of_other_nodes_are_found_shown_and_stopped(orch: Orch, damaged: Site) -> None:
    leave(damaged, GOOD)
    listed = orch("runs", *WHERE, "--json")
    assert [one["id"] for one in json.loads(listed.stdout)["runs"]] == [GOOD]
    assert (listed.returncode, listed.stderr.count("broken.json")) == (0, 1)
    for verb in (("attach", "last"), ("logs", "last"), ("report", "last"), ("stop", "last")):
        done = orch(*verb, *WHERE)
        assert done.returncode == 0, (verb, done.stdout + done.stderr)
        assert "broken.json" in done.stderr, verb


def test_a_run_trains_on_the_others(orch: Orch, damaged: Site) -> None:
    done = orch("train", "own.py", *WHERE, *RANKS, "--nodes", "far")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "broken.json" in done.stdout + done.stderr
    refused = orch("train", "own.py", *WHERE, *RANKS)
    assert refused.returncode == 2
    assert "broken.json" in refused.stderr
    assert "orch provision" in refused.stderr


def test_what_could_not_be_cleaned_is_said(orch: Orch, damaged: Site) -> None:
    done = orch("clean", *WHERE, "--json")
    states = {node["node"]: node["state"] for node in json.loads(done.stdout)["nodes"]}
    assert states == {"far": "clean", "broken": "unreachable"}
    assert done.returncode == 1
