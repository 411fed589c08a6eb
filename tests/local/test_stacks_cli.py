"""Run `orch stacks` with environments made of real folders, and pip with real wheels."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator import load
from tests.local.runs import Orch, Process, expect_exit


def parse(process: Process) -> Any:
    return json.loads(process.stdout)


def make_environment(folder: Path, packages: Mapping[str, str]) -> Path:
    """Make a prefix with the metadata of packages, and return its interpreter."""
    for name, version in packages.items():
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        (folder / "lib/python3.11/site-packages" / info).mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(os.path.realpath(sys.executable))
    return folder / "bin/python"


def test_stacks_are_listed_and_shown_with_their_requirements(orch: Orch) -> None:
    lines = {line.split()[0]: line for line in expect_exit(orch("stacks")).stdout.splitlines()}
    assert set(lines) >= set(load.stack_names())
    assert "needs Intel's index; end of life since 2025-12-31" in lines["intel-2.7"]
    value = parse(orch("stacks", "show", "torch-ccl-1.10", "--json"))
    assert value["stack"]["bindings"]["module"] == "torch_ccl"
    assert value["stack"]["sources"]["oneccl-bind-pt"]
    gloo = orch("stacks", "requirements", "intel-2.7", "--backend", "gloo").stdout
    assert "oneccl" not in gloo
    assert "torch==2.7.0\n" in gloo


def test_check_names_every_mismatch(orch: Orch, tmp_path: Path) -> None:
    packages = {
        "torch": "2.13.0+cpu",
        "intel-extension-for-pytorch": "2.8.0",
        "oneccl-bind-pt": "2.7.0+xpu",
        "transformers": "5.23.0",
    }
    python = str(make_environment(tmp_path / "wrong", packages))
    process = expect_exit(orch("stacks", "check", "--python", python), 1)
    assert f"{python}: 3 mismatches (looked at as stack 'current')" in process.stdout
    assert "IPEX 2.8.0 with torch 2.13.0+cpu" in process.stdout
    assert "oneccl_bind_pt 2.7.0+xpu is the wheel for Intel GPUs" in process.stdout
    assert process.stdout.count("  hint: ") == 3


def test_check_compares_the_nodes_of_an_inventory(orch: Orch) -> None:
    value = parse(orch("stacks", "check", "--inventory", "local", "--json"))
    assert value["nodes"]
    assert all(node["stack"] == "current" for node in value["nodes"])
