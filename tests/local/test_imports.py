"""Refuse scripts that import modules which the Python of their ranks does not have."""

from __future__ import annotations

import json

from tests.local.runs import expect_exit, write_script
from tests.local.workspaces import Workspace

TEXT = "import os\nimport yaml, no_such_module\nfrom torch import nn\n"
MESSAGE = "own.py imports no_such_module, which stack current does not have."
GLOO = ("--backend", "gloo")


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
