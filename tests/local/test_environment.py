"""Ranks have what a user sets, no variable of orch replaces it in silence, and secrets are shown nowhere."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from orch_node.protocol.environment import find_reserved

from tests.conftest import orch_environment
from tests.local.runs import Orch, expect_exit, last_run, rank_log, write_script
from tests.local.workspaces import Workspace, make_hosts

PRINT_ENVIRONMENT = "import json, os\nprint('ENVIRONMENT', json.dumps(dict(os.environ)))\n"
# What the launchers themselves set, shells, and Python in the locale C.
NOT_BY_ORCH = ("HYDRA_", "I_MPI_", "OMPI_", "PMI", "GFORTRAN_", "_", "PWD", "OLDPWD", "SHLVL", "LC_CTYPE")
# Variables by which scripts for another launcher find their rank.
OTHER_LAUNCHERS = (
    *("PMI_RANK", "PMI_SIZE"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)
# Variables that orch or PyTorch reads in each rank need a value that they understand.
VALUES = {
    "KMP_AFFINITY": "none",
    "KMP_BLOCKTIME": "2",
    "GLOO_SOCKET_IFNAME": "eth0,eth0",
    "GLIBC_TUNABLES": "glibc.malloc.mmap_max=1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "ORCH_STACK_SIGNAL": "44",
    "ORCH_PREEMPT_SIGNAL": "43",
}
GLOO_ONLY = {"TORCH_DIST_INIT_BARRIER": "0"}  # orch sets all others with ccl, too


def rank_environments(workspace: Workspace, *options: str) -> list[dict[str, str]]:
    """Run a script and return the environment of each rank."""
    cell = workspace.train_text(PRINT_ENVIRONMENT, *options)
    return [json.loads(cell.printed("ENVIRONMENT", rank)) for rank in range(2)]


def set_by_orch(workspace: Workspace, *environments: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of these ranks that orch sets."""
    inherited = orch_environment(workspace.folder)
    variables = {
        name: value
        for environment in environments
        for name, value in environment.items()
        if inherited.get(name) != value
    }
    return {name: value for name, value in variables.items() if not name.startswith(NOT_BY_ORCH)}


def user_values(variables: Mapping[str, str]) -> dict[str, str]:
    """Return another value of each variable that a user may set."""
    paths = {name: f"{value}:/nowhere" for name, value in variables.items() if name.endswith("PATH")}
    values = dict.fromkeys(variables, "other") | paths | {k: v for k, v in VALUES.items() if k in variables}
    return {name: value for name, value in values.items() if not find_reserved([name])}


def as_options(variables: Mapping[str, str]) -> list[str]:
    return [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]


def test_each_variable_that_orch_sets_is_obeyed_or_refused(tmp_path: Path) -> None:
    """Set it in the inventory or in the request; what both set has the value of the request."""
    with make_hosts(tmp_path, "--ppn", "1") as hosts:
        command = [*hosts.lab.ssh_command(hosts.lab.hosts[0]), "env"]
        login = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        names = {line.partition("=")[0] for line in login.splitlines()}
        variables = set_by_orch(hosts, *rank_environments(hosts, "--backend", "ccl"))
        variables = {name: value for name, value in variables.items() if name not in names}
        values = user_values(variables) | GLOO_ONLY
        expected = {"KMP_BLOCKTIME", "GLOO_SOCKET_IFNAME", "CCL_KVS_IFACE", "FI_TCP_IFACE", "GLIBC_TUNABLES"}
        assert expected <= values.keys()
        inventory = {name: value for name, value in values.items() if name < "K"}
        requested = {name: value for name, value in values.items() if name not in inventory}
        for host in hosts.lab.hosts:
            provisioned = {**inventory, **dict.fromkeys(requested, "of the inventory")}
            (host.folder / "root/env.json").write_text(json.dumps(provisioned))
        environments = rank_environments(hosts, "--backend", "gloo", *as_options(requested))
        assert set_by_orch(hosts, *environments).keys() <= variables.keys() | names | GLOO_ONLY.keys()
        for rank, environment in enumerate(environments):
            assert {name: environment.get(name) for name in values} == values
            numbers = (str(rank), "2", str(rank), "2", "0")
            assert tuple(environment[name] for name in OTHER_LAUNCHERS) == numbers, "of scripts for another launcher"
        reserved = dict.fromkeys(sorted(variables.keys() - values.keys()), "1")
        process = hosts.orch("train", "own.py", *as_options(reserved), *hosts.options, "--dry-run")
        assert f"{next(iter(reserved))}: " in expect_exit(process, 2).stderr


# Secrets that are passed by value.


SECRETS_SCRIPT = """
import os, sys
print(os.environ["DATABASE_URL"] == "postgres://me:" + "pa55word" + "@h", sys.argv[2] == "hf_" + "a" * 20)
raise SystemExit(os.path.exists("saved") is False and open("saved", "w").close() is None)
"""
TOKEN = "hf_" + "a" * 20
SECRETS = ("--env", "DATABASE_URL=postgres://me:pa55word@h")
ARGUMENTS = ("--", "--hf_token", TOKEN)
INVENTORY = "all: {hosts: {node0: {ansible_connection: local}}}"


def test_secrets_by_value_are_masked(orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = ("train", write_script(tmp_path, SECRETS_SCRIPT), "--ppn", "1", "--backend", "gloo", *SECRETS)
    shown = [orch(*train, "--dry-run", *options, *ARGUMENTS) for options in ((), ("-o", "sh"), ("--json",))]
    shown.append(expect_exit(orch(*train, "-v", *ARGUMENTS), 1))
    run = last_run(tmp_path)
    assert rank_log(run, 0).splitlines()[-1] == "True True"
    shown.append(expect_exit(orch("report", "-o", "report.html")))
    shown += [orch("runs", "show"), orch("runs", "show", "--json"), orch("logs")]
    for process in shown:
        assert "pa55word" not in process.stdout + process.stderr
        assert TOKEN not in process.stdout + process.stderr
    records = [path for path in run.rglob("*") if path.is_file() and path.name != "env.json"]
    for path in (tmp_path / "report.html", *records):
        assert b"pa55word" not in path.read_bytes(), path
        assert TOKEN.encode() not in path.read_bytes(), path
    assert "<masked>" in (run / "plan.json").read_text()
    assert json.loads((run / "plan.json").read_text())
    assert "does not have the secret in DATABASE_URL" in expect_exit(orch("resume", run.name), 2).stderr
    monkeypatch.setenv("DATABASE_URL", "postgres://me:pa55word@h")
    shown = expect_exit(orch("train", "own.py", "--ppn", "1", "--dry-run", "--json", "--env", "DATABASE_URL")).stdout
    assert "<masked>" in shown
    assert "pa55word" not in shown


def test_waiting_run_gets_secrets_that_are_not_recorded(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "inventory/mine").mkdir(parents=True)
    (tmp_path / "inventory/mine/hosts.yml").write_text(INVENTORY)
    options = ("--inventory", "inventory/mine", "--wait-for-cores", "--ppn", "1", "--backend", "gloo")
    expect_exit(orch("train", write_script(tmp_path, SECRETS_SCRIPT), *options, *SECRETS, *ARGUMENTS), 1)
    run = last_run(tmp_path)
    assert rank_log(run, 0).splitlines()[-1] == "True True"
    for path in (path for path in run.rglob("*") if path.is_file() and path.name != "env.json"):
        assert b"pa55word" not in path.read_bytes(), path
        assert TOKEN.encode() not in path.read_bytes(), path
