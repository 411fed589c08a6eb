"""Run a project of several files on two hosts, fetch what it has written, and run modules as `python -m` does."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.local.runs import expect_exit, run_in
from tests.local.workspaces import Workspace
from tests.support.projects import FILES, RESULT, write_project

GLOO = ("--backend", "gloo")


@pytest.fixture(scope="module")
def script(two_hosts: Workspace) -> str:
    """Return the path of a script in a git repository, relative to the workspace's folder."""
    write_project(two_hosts.folder / "my project")
    return "my project/train.py"


def test_modules_and_files_of_a_project_are_found_on_all_nodes(two_hosts: Workspace, script: str) -> None:
    """Train twice: in between node1 loses the project, and gets it from node0 again."""
    two_hosts.train(script, *GLOO, "--", "--lr", "$(x)")
    first_store, lost_store = stored_projects(two_hosts)
    inode = first_store.stat().st_ino
    shutil.rmtree(lost_store)
    cell = two_hosts.train(script, *GLOO, "--", "--lr", "$(x)")
    assert (first_store.stat().st_ino, lost_store.is_dir()) == (inode, True)
    assert [cell.printed("RESULT", rank) for rank in (0, 1)] == [RESULT, RESULT]
    copies = [Path(host.folder, "root/runs", cell.report["run_id"], "project") for host in two_hosts.lab.hosts]
    assert [sorted(path.name for path in copy.iterdir()) for copy in copies] == [
        [".gitignore", "__pycache__", "conf", "helper.py", "net", "out", "train.py"],
        [".gitignore", "__pycache__", "conf", "helper.py", "net", "train.py"],
    ]
    for stored in stored_projects(two_hosts):
        assert json.loads((stored / "conf/small.json").read_text()) == {"steps": 3}
        assert not (stored / "out").exists()
    assert json.loads((two_hosts.folder / "my project/conf/small.json").read_text()) == {"steps": 3}
    shown = json.loads(two_hosts.orch("fetch", cell.report["run_id"], "--json").stdout)
    assert sorted(shown["brought"]) == ["conf/small.json", "out/model.txt"]
    assert Path(shown["folder"], "out/model.txt").read_text() == "trained"
    shown = json.loads(two_hosts.orch("fetch", cell.report["run_id"], "--code", "--json").stdout)
    assert shown["files"] == len(shown["brought"]) == len([name for name in FILES if not name.startswith("data/")])
    assert Path(shown["folder"], "conf/small.json").read_text() == FILES["conf/small.json"]


def stored_projects(workspace: Workspace) -> list[Path]:
    """Return the folder of the project in store/ of each host, next to what other tests have stored."""
    return [next(Path(host.folder, "root/store").glob("[0-9a-f]*/net")).parent for host in workspace.lab.hosts]


def test_a_project_on_this_machine_is_copied_only_on_request(two_hosts: Workspace, script: str) -> None:
    local = Workspace(two_hosts.folder, "--ppn", "1")
    copied = local.train(script, *GLOO, "--project", "my project", "--", "--lr", "$(x)")
    assert copied.printed("RESULT", 0) == RESULT.replace("6.0", "3.0")
    assert not (two_hosts.folder / "my project/out").exists()
    direct = local.train(script, *GLOO, code=1)  # conf/ is not in the current folder
    assert "conf/small.json" in direct.logs[0]


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
