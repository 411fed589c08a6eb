"""A controller's view of the test cluster: an inventory of its own, a state of its own, `orch`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support.images import FLAVOURS
from tests.support.warm import run_orch

if TYPE_CHECKING:
    from tests.cluster.conftest import TestCluster

TOKEN = "hf_neverToBeSeenInAnyLog"
ROOT = "/home/vagrant/orch"
LOCK = f"{ROOT}/.lock"
SITE = f"{ROOT}/stacks/current/lib/python3.11/site-packages"
ORCH = (sys.executable, "-m", "orchestrator.cli.main")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An inventory of some of the nodes, and a controller that has never seen them."""

    cluster: TestCluster
    folder: Path
    name: str = "hosts.yml"
    program: tuple[str, ...] = ORCH
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        state = {"XDG_STATE_HOME": str(self.folder / "state")}
        return {**os.environ, **state, **self.variables}

    @property
    def inventory(self) -> Path:
        return self.folder / "lab" / self.name

    def content(self, *nodes: str, **variables: Any) -> dict[str, Any]:
        """Hosts and variables of an inventory; a variable that is None is left out."""
        options = f"-o UserKnownHostsFile={self.cluster.state}/known_hosts -o IdentitiesOnly=yes"
        common = {
            "ansible_user": "vagrant",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_private_key_file": str(self.cluster.state / "id_ed25519"),
            "ansible_ssh_common_args": f"{options} -o StrictHostKeyChecking=yes",
            "orch_env": {"LAB": "one"},
            "orch_mpi": [*FLAVOURS],
            "orch_secrets": {"HF_TOKEN": TOKEN},
            **variables,
        }
        return {
            "hosts": {node: {"ansible_host": self.cluster.address(node)} for node in nodes},
            "vars": {name: value for name, value in common.items() if value is not None},
        }

    def describe(self, *nodes: str, **variables: Any) -> None:
        """Write the inventory; `variables` are of all nodes."""
        self.inventory.parent.mkdir(exist_ok=True, parents=True)
        self.inventory.write_text(yaml.safe_dump({"all": self.content(*nodes, **variables)}))

    def start(self, *flags: str, command: str = "provision") -> subprocess.Popen[str]:
        return self.spawn(command, str(self.inventory), *flags)

    def spawn(self, *arguments: str) -> subprocess.Popen[str]:
        """A command of orch, on this controller."""
        return subprocess.Popen(
            [*self.program, *arguments],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def orch(self, *flags: str, command: str = "provision", code: int = 0) -> dict[str, Any]:
        """Run orch with --json; -> what it printed."""
        done = self.run(command, str(self.inventory), "--json", *flags, seconds=900)
        assert done.returncode == code, said(done)
        assert TOKEN not in done.stdout + done.stderr
        if not done.stdout.startswith("{"):
            return {"stderr": done.stderr}
        return dict(json.loads(done.stdout))

    def train(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Run `orch train` on the inventory; -> the run, as --json tells it."""
        where = ("--inventory", str(self.inventory), "--json")
        done = self.run("train", *where, *arguments, seconds=600)
        assert done.returncode == code, said(done)
        assert done.stdout.startswith("{"), said(done)
        return dict(json.loads(done.stdout))

    def run(self, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """A command of orch, to its end; by our own Python it starts warm (see tests/support/warm.py)."""
        if self.program == ORCH:
            return run_orch(*arguments, env=self.environment, cwd=self.folder, timeout=seconds)
        return subprocess.run(
            [*self.program, *arguments],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )


def said(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"


def nodes_of(report: dict[str, Any]) -> dict[str, Any]:
    return {node["node"]: node for node in report["nodes"]}


def drift(report: dict[str, Any]) -> dict[str, set[str]]:
    return {name: {change["what"] for change in node["changes"]} for name, node in nodes_of(report).items()}


def on(site: Site, node: str, *argv: str) -> str:
    return site.cluster.exec(node, argv, user="vagrant")


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    pytest.fail(f"ended without {text!r}")
