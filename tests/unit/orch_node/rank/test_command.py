"""Run a user's command in the environment of the ranks of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from orch_node import program
from orch_node.protocol import container
from orch_node.protocol import layout as layouts
from orch_node.protocol.container import ContainerSpec
from orch_node.protocol.layout import NodeEntry

from tests.support.layouts import make_layout

SPEC = ContainerSpec(image="team/torch:3", start="rank", python="python3", preload=(), processes={}, options=())
ENTRY = NodeEntry("node1", "", None, None, interface=None, env={"GLOO_SOCKET_IFNAME": "eth7", "A": "node"})


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return the folder of a run with a node and a working directory."""
    (tmp_path / "project").mkdir()
    run_layout = make_layout("node1", nodes=(ENTRY,), working_directory=str(tmp_path / "project"))
    (tmp_path / "layout.json").write_text(layouts.render(run_layout))
    (tmp_path / "env.json").write_text(json.dumps({"MASTER_PORT": "1", "A": "run", "B": "two\nlines"}))
    return tmp_path


def run_command(run_dir: Path, *command: str) -> subprocess.CompletedProcess[str]:
    argv = program.command("exec", f"--run={run_dir}", "--node=node1", "--", *command)
    environment = {**os.environ, "PATH": "/usr/bin:/bin", "ORCH_RUN_DIR": "/another"}
    # The command ends with its standard input, which stays open.
    with subprocess.Popen(
        argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        output, errors = process.stdout.read(), process.stderr.read()
    return subprocess.CompletedProcess(argv, process.returncode, output, errors)


def test_command_has_the_variables_of_the_run_and_of_its_node(run_dir: Path) -> None:
    show = "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))"
    folder, environment = json.loads(run_command(run_dir, "python", "-c", show).stdout)
    assert folder == str(run_dir / "project")
    assert (environment["A"], environment["B"]) == ("node", "two\nlines")
    assert environment["GLOO_SOCKET_IFNAME"] == "eth7"
    assert environment["PATH"] == f"{Path(sys.executable).parent}:/usr/bin:/bin"
    assert "ORCH_RUN_DIR" not in environment, "the command would be ended with the run"


def test_command_of_a_run_in_containers_is_refused(run_dir: Path) -> None:
    (run_dir / "container.json").write_text(container.render(SPEC))
    result = run_command(run_dir, "echo", "started")
    assert result.returncode == 1
    assert "docker exec" in result.stderr
    assert "started" not in result.stdout
