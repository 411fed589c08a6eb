"""Check that a controller keeps its lock on a node while it works."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from orchestrator.provisioning import playbook
from orchestrator.provisioning.playbook import Playbook
from orchestrator.provisioning.task_result import TaskResult
from tests.roles.modules import load_module

SECONDS = 3  # another controller takes over a lock that has not been renewed for longer


def make_controller(folder: Path, token: str) -> Playbook:
    inventory = folder / "lab.yml"
    settings = f"ansible_connection: local, ansible_python_interpreter: {sys.executable}"
    inventory.write_text(f"all:\n  hosts:\n    node0: {{{settings}}}\n")
    owner = {"token": token, "user": token, "host": "h", "pid": "1", "what": "provision"}
    variables = {"orch_root": str(folder / "root"), "orch_owner": owner, "lock_seconds": SECONDS}
    return Playbook(name="lock", inventory=inventory, variables=variables, state=folder / "state", log=folder / "log")


def test_lock_is_renewed_while_its_holder_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playbook, "RENEW_SECONDS", 0.2)
    first, path = make_controller(tmp_path, "first"), tmp_path / "root" / ".lock"
    lock = load_module("orch_lock")
    other_owner = {**first.variables["orch_owner"], "token": "second"}
    lock.acquire(str(path), first.variables["orch_owner"], SECONDS)
    results: list[TaskResult] = []
    with playbook.repeated(lambda: str(playbook.run(first, results.append, lambda _: None))):
        deadline = time.monotonic() + 60
        while sum(result.task == "Make the lock renewed" for result in results) < 2:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.1)
        with pytest.raises(lock.HeldError):
            lock.acquire(str(path), other_owner, SECONDS * 10)
    assert [result.result for result in results if result.state != "ok"] == []
    assert json.loads(path.read_text())["token"] == "first"
    time.sleep(SECONDS + 0.5)
    assert "took over" in lock.acquire(str(path), other_owner, SECONDS), "it is no longer renewed"
