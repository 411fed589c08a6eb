"""Train scripts that need packages or modules which the stack does not have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.local.runs import expect_exit, write_script
from tests.local.workspaces import Workspace
from tests.support.wheels import index_variables, make_wheel

GLOO = ("--backend", "gloo")
SCRIPT = """
# /// script
# dependencies = ["orch-test-greeter", "torch>=2"]
# ///
import subprocess, sys
import torch, torch.distributed as dist
import orch_test_greeter, orch_test_names
dist.all_reduce(torch.ones(1))
child = subprocess.run(
    [sys.executable, "-c", "import orch_test_names; print(orch_test_names.VERSION)"], stdout=subprocess.PIPE, text=True
)
print("RESULT", orch_test_greeter.VERSION, orch_test_names.VERSION, child.stdout.strip(), torch.__version__, flush=True)
print("FOLDER", orch_test_greeter.__file__, flush=True)
"""
RESULT = "1.0 2.0 2.0 "


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of wheels that is the only index."""
    make_wheel(tmp_path, "orch_test_greeter", "1.0", requires=["orch-test-names>=2"], module="VERSION = '1.0'")
    make_wheel(tmp_path, "orch_test_names", "2.0", module="VERSION = '2.0'")
    for name, value in index_variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_packages_of_the_script_reach_all_nodes_once(two_hosts: Workspace, index: Path) -> None:
    cell = two_hosts.train_text(SCRIPT, *GLOO, "--project", "none")
    assert [cell.printed("RESULT", rank).startswith(RESULT) for rank in (0, 1)] == [True, True]
    folder = Path(cell.printed("FOLDER", 1)).parent
    digest = folder.name
    assert folder.parent.name == "store"
    stores = [host.folder / "root/store" / digest for host in two_hosts.lab.hosts]
    times = [store.stat().st_ctime_ns for store in stores]
    shown = two_hosts.orch("train", "own.py", *two_hosts.options, *GLOO, "--project", "none", "--dry-run").stdout
    assert "packages: orch-test-greeter 1.0, orch-test-names 2.0, " in shown
    for wheel in index.iterdir():
        wheel.unlink()
    second = two_hosts.train_text(SCRIPT, *GLOO, "--project", "none")
    assert second.printed("FOLDER", 0) == cell.printed("FOLDER", 0)
    assert [store.stat().st_ctime_ns for store in stores] == times
    command = ("python", "-c", "import orch_test_names; print(orch_test_names.VERSION)")
    assert two_hosts.orch("exec", "last", "--gather", "--", *command).stdout == "node[0-1]: 2.0\n"
    origin = json.loads((two_hosts.folder / "runs" / cell.report["run_id"] / "plan.json").read_text())["packages"]
    assert origin["digest"] == digest
    assert origin["versions"] == {"orch-test-greeter": "1.0", "orch-test-names": "2.0"}


def test_packages_and_a_folder_src_are_found_on_this_machine(one_host: Workspace, index: Path) -> None:
    project = one_host.folder / "project"
    (project / "src/my_model").mkdir(parents=True)
    (project / "src/my_model/__init__.py").write_text("WIDTH = 3\n")
    (project / "pyproject.toml").write_text('[project]\nname = "my-model"\ndependencies = ["orch-test-greeter"]\n')
    text = SCRIPT.replace("# /// script", "#").replace("import orch_test_greeter", "import my_model, orch_test_greeter")
    (project / "train.py").write_text(text)
    cell = one_host.train("project/train.py", "--backend", "gloo", "--launcher", "torchrun")
    assert cell.printed("RESULT", 0).startswith(RESULT)
    options = (*one_host.options, *GLOO, "--requirements", "none")
    refused = expect_exit(one_host.orch("train", "project/train.py", *options), 2)
    assert "train.py imports orch_test_greeter and orch_test_names" in refused.stderr


# Modules that the Python of the ranks does not have.


TEXT = "import os\nimport yaml, no_such_module\nfrom torch import nn\n"
MESSAGE = "own.py imports no_such_module, which stack current does not have."


def test_missing_module_of_a_node_is_named_and_nothing_is_left(two_hosts: Workspace) -> None:
    write_script(two_hosts.folder, TEXT)
    folders = (two_hosts.folder, *(host.folder / "root" for host in two_hosts.lab.hosts))
    runs = [sorted(folder.glob("runs/*/")) for folder in folders]
    process = two_hosts.orch("train", "own.py", *two_hosts.options, *GLOO, "--project", "none")
    assert f"error: {MESSAGE}" in expect_exit(process, 2).stderr
    assert [sorted(folder.glob("runs/*/")) for folder in folders] == runs


def test_module_in_a_folder_of_the_inventory_is_found(two_hosts: Workspace) -> None:
    """Let orch_env of the inventory set PYTHONPATH on the nodes."""
    for host in two_hosts.lab.hosts:
        (host.folder / "root/modules").mkdir()
        (host.folder / "root/modules/no_such_module.py").write_text("")
        (host.folder / "root/env.json").write_text(json.dumps({"PYTHONPATH": f"{two_hosts.lab.root}/modules"}))
    try:
        two_hosts.train_text(f"{TEXT}import torch.distributed as dist\ndist.barrier()\n", *GLOO, "--project", "none")
    finally:
        for host in two_hosts.lab.hosts:
            (host.folder / "root/env.json").unlink()
