"""Run `orch` as a controller that has its own inventory of the test cluster, and its own state."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.conftest import ORCH
from tests.support.images import MPI_FLAVOURS
from tests.support.warm import run_orch

if TYPE_CHECKING:
    from tests.cluster.conftest import TestCluster

TOKEN = "hf_neverToBeSeenInAnyLog"
ROOT = "/home/vagrant/orch"
LOCK = f"{ROOT}/.lock"
STACK = f"{ROOT}/stacks/current"
SITE_PACKAGES = f"{STACK}/lib/python3.11/site-packages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A controller and its inventory of some nodes of a test cluster.

    Attributes:
        folder: the controller's working folder, with its state.
        program: the command that starts `orch`.
        variables: additional environment variables.
    """

    cluster: TestCluster
    folder: Path
    program: tuple[str, ...] = ORCH
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **{"XDG_STATE_HOME": str(self.folder / "state")}, **self.variables}

    @property
    def inventory(self) -> Path:
        return self.folder / "lab/hosts.yml"

    def write_inventory(self, *nodes: str, **variables: Any) -> None:
        """Write the inventory, with variables for all nodes; a variable of None is omitted."""
        options = f"-o UserKnownHostsFile={self.cluster.state}/known_hosts -o IdentitiesOnly=yes"
        common = {
            "ansible_user": "vagrant",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_private_key_file": str(self.cluster.state / "id_ed25519"),
            "ansible_ssh_common_args": f"{options} -o StrictHostKeyChecking=yes",
            "orch_env": {"LAB": "one"},
            "orch_mpi": [*MPI_FLAVOURS],
            "orch_secrets": {"HF_TOKEN": TOKEN},
            **variables,
        }
        group = {
            "hosts": {node: {"ansible_host": self.cluster.address(node)} for node in nodes},
            "vars": {name: value for name, value in common.items() if value is not None},
        }
        self.inventory.parent.mkdir(exist_ok=True, parents=True)
        self.inventory.write_text(yaml.safe_dump({"all": group}))

    def start(self, *flags: str) -> subprocess.Popen[str]:
        """Start `orch provision`."""
        return self.spawn("provision", str(self.inventory), *flags)

    def spawn(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of orch."""
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
        """Run a command on the inventory with --json, and return its report, or its stderr if it prints no report."""
        done = self.run(command, str(self.inventory), "--json", *flags, seconds=900)
        assert done.returncode == code, describe_end(done)
        assert TOKEN not in done.stdout + done.stderr
        if not done.stdout.startswith("{"):
            return {"stderr": done.stderr}
        return dict(json.loads(done.stdout))

    def train(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Run `orch train` on the inventory, and return the report that it prints."""
        options = ("--inventory", str(self.inventory), "--json")
        done = self.run("train", *options, *arguments, seconds=600)
        assert done.returncode == code, describe_end(done)
        assert done.stdout.startswith("{"), describe_end(done)
        return dict(json.loads(done.stdout))

    def run(self, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """Run a command of orch, forked from a warm server (tests/support/warm.py) if it runs in this Python."""
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


def describe_end(done: subprocess.CompletedProcess[str]) -> str:
    """Return the exit code and the output of a program, as an assertion message."""
    return f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"


def nodes_by_name(report: dict[str, Any]) -> dict[str, Any]:
    return {node["node"]: node for node in report["nodes"]}


def drift(report: dict[str, Any]) -> dict[str, set[str]]:
    """Return, for each node of a report, the names of what was changed or, with --dry-run, would be changed."""
    return {name: {change["what"] for change in node["changes"]} for name, node in nodes_by_name(report).items()}


def run_on(site: Site, node: str, *argv: str) -> str:
    """Run a command on a node as the user of the inventory, and return its output."""
    return site.cluster.exec(node, argv, user="vagrant")


def wait_for_output(process: subprocess.Popen[str], text: str) -> None:
    """Read stderr of a process until a line contains this text; fail the test if the process ends first."""
    for line in process.stderr:
        if text in line:
            return
    pytest.fail(f"the process ended without printing {text!r}")
