"""Run modules with `orch train -m package.module`, as `python -m` does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.local.runs import expect_exit, run_in
from tests.local.workspaces import Workspace

PRINT_NAMES = """import json, sys
print("NAMES", json.dumps([sys.path, sys.argv, __name__, __package__, __file__, __spec__ and __spec__.name]))
"""


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    """Return a workspace whose folder has a package with two modules."""
    package = tmp_path / "work" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import sys\nprint('ARGV', sys.argv[0])\n")
    (package / "train.py").write_text(PRINT_NAMES)
    (package / "__main__.py").write_text(PRINT_NAMES)
    return Workspace(package.parent)


def run_python(folder: Path, *arguments: str) -> list[object]:
    """Return what a module prints under `python -m`."""
    argv, names = expect_exit(run_in(folder, sys.executable, "-m", *arguments)).stdout.splitlines()
    assert argv == "ARGV -m"
    return list(json.loads(names.removeprefix("NAMES ")))


def test_module_has_the_names_and_arguments_of_python_m(project: Workspace) -> None:
    """Start it by torchrun, and the package below by mpirun."""
    arguments = ("-m", "--epochs", "3", "", "a b")
    expected = run_python(project.folder, "package.train", *arguments)
    cell = project.train("package.train", "-m", "--ppn", "1", "--launcher", "torchrun", "--", *arguments)
    path, *names = json.loads(cell.printed("NAMES", 0))
    assert [path[:-1], *names] == expected, "orch appends one folder"
    assert cell.printed("ARGV", 0) == "-m"


def test_package_runs_its_main_module_and_is_imported_only_by_ranks(project: Workspace) -> None:
    expected = run_python(project.folder, "package")
    with (project.folder / "package" / "__init__.py").open("a") as initializer:
        initializer.write("import torch.distributed as dist\nassert dist.is_initialized()\n")
    path, *names = json.loads(project.train("package", "-m", "--ppn", "1").printed("NAMES", 0))
    assert [path[:-1], *names] == expected
