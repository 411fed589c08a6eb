"""`orch train -m package.module`: the ranks run a module as `python -m` does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.launchers import LAUNCHERS
from tests.conftest import orch_environment, orch_in
from tests.local.runs import expect_exit
from tests.local.workspaces import Workspace
from tests.support.matrix import Cell

NAMES = "__name__, __package__, __file__, __spec__ and __spec__.name"
SHOW = f"""import json, sys
print("SEEN", json.dumps([sys.path, sys.argv, {NAMES}]))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    package = tmp_path / "work" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import sys\nprint('ARGV', sys.argv[0])\n")
    (package / "train.py").write_text(SHOW)
    (package / "__main__.py").write_text(SHOW)
    (tmp_path / "work" / "plain").mkdir()
    return package.parent


def run_python(folder: Path, *arguments: str) -> list[object]:
    command = [sys.executable, "-m", *arguments]
    environment = orch_environment(folder)
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
    argv, seen = process.stdout.decode().splitlines()
    assert argv == "ARGV -m"
    return list(json.loads(seen.removeprefix("SEEN ")))


def start(folder: Path, *arguments: str) -> Cell:
    process = orch_in(folder, "train", "--json", "--ppn", "2", *arguments, timeout=180)
    assert process.stdout.startswith("{"), process.stderr
    return Cell.of(process.returncode, json.loads(process.stdout))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_module_finds_what_python_m_gives_it(project: Path, launcher: str) -> None:
    arguments = ("-m", "--epochs", "3", "", "a b")
    expected = run_python(project, "package.train", *arguments)
    cell = start(project, "--launcher", launcher, "-m", "package.train", "--", *arguments)
    assert cell.code == 0, cell.report
    for rank in range(2):
        path, *seen = json.loads(cell.printed("SEEN", rank))
        assert [path[:-1], *seen] == expected, "the last folder is orch's"
        assert cell.printed("ARGV", rank) == "-m"


def test_a_package_runs_its_main_module(project: Path) -> None:
    cell = start(project, "-m", "package")
    assert cell.code == 0, cell.report
    path, *seen = json.loads(cell.printed("SEEN", 0))
    assert [path[:-1], *seen] == run_python(project, "package")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("package.trian", "the current folder"),
        ("packag.train", "the current folder"),
        ("package.train.more", "the current folder"),
        ("package..train", "the current folder"),
        ("plain", "plain.__main__"),
        ("package/train.py", "Omit -m"),
        ("package.train.py", "Omit .py"),
    ],
)
def test_a_module_that_cannot_run_is_refused(project: Path, name: str, hint: str) -> None:
    process = expect_exit(orch_in(project, "train", "-m", name), 2)
    assert name in process.stderr
    assert hint in process.stderr
    assert not (project / "runs").exists()


def test_the_packages_of_a_module_are_imported_by_the_ranks_alone(project: Path) -> None:
    (project / "package" / "__init__.py").write_text("import torch.distributed as dist\nassert dist.is_initialized()\n")
    expect_exit(orch_in(project, "train", "-m", "package.train", "--ppn", "1"))


def test_a_module_that_a_node_lacks_is_named(two_hosts: Workspace, project: Path) -> None:
    cell = two_hosts.train("package.train", "-m", code=1)
    assert "no module named package.train" in cell.report["failure"]["text"]
    assert "working directory" in cell.report["failure"]["text"]
