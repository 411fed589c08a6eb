"""Secrets that are passed by value reach the ranks, and nothing that orch records, prints or makes to be shared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.local.runs import Orch, expect_exit, last_run, rank_log, write_script

SCRIPT = """
import os, sys
print(os.environ["DATABASE_URL"] == "postgres://me:" + "pa55word" + "@h", sys.argv[2] == "hf_" + "a" * 20)
raise SystemExit(os.path.exists("saved") is False and open("saved", "w").close() is None)
"""
TOKEN = "hf_" + "a" * 20
SECRETS = ("--env", "DATABASE_URL=postgres://me:pa55word@h")
ARGUMENTS = ("--", "--hf_token", TOKEN)
INVENTORY = "all: {hosts: {node0: {ansible_connection: local}}}"


def test_secrets_by_value_are_masked(orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = ("train", write_script(tmp_path, SCRIPT), "--ppn", "1", "--backend", "gloo", *SECRETS)
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
    refused = expect_exit(orch("resume", run.name), 2)
    assert "does not have the secret in DATABASE_URL" in refused.stderr
    monkeypatch.setenv("DATABASE_URL", "postgres://me:pa55word@h")
    shown = expect_exit(orch("train", "own.py", "--ppn", "1", "--dry-run", "--json", "--env", "DATABASE_URL")).stdout
    assert "<masked>" in shown
    assert "pa55word" not in shown


def test_waiting_run_gets_secrets_that_are_not_recorded(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "inventory/mine").mkdir(parents=True)
    (tmp_path / "inventory/mine/hosts.yml").write_text(INVENTORY)
    options = ("--inventory", "inventory/mine", "--wait-for-cores", "--ppn", "1", "--backend", "gloo")
    expect_exit(orch("train", write_script(tmp_path, SCRIPT), *options, *SECRETS, *ARGUMENTS), 1)
    run = last_run(tmp_path)
    assert rank_log(run, 0).splitlines()[-1] == "True True"
    for path in (path for path in run.rglob("*") if path.is_file() and path.name != "env.json"):
        assert b"pa55word" not in path.read_bytes(), path
        assert TOKEN.encode() not in path.read_bytes(), path
