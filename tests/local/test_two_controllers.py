"""Two controllers and one node, which is this machine to Ansible: the lock is its holder's for as
long as it lives."""

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

SECONDS = 3  # without a renewal, until a lock is taken over


def controller(folder: Path, token: str) -> Playbook:
    inventory = folder / "lab.yml"
    settings = f"ansible_connection: local, ansible_python_interpreter: {sys.executable}"
    inventory.write_text(f"all:\n  hosts:\n    node0: {{{settings}}}\n")
    owner = {"token": token, "user": token, "host": "h", "pid": "1", "what": "provision"}
    variables = {"orch_root": str(folder / "root"), "orch_owner": owner, "lock_seconds": SECONDS}
    return Playbook(name="lock", inventory=inventory, variables=variables, state=folder / "state", log=folder / "log")


def test_a_lock_is_renewed_beside_the_work_of_its_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playbook, "RENEW_SECONDS", 0.2)
    first, path = controller(tmp_path, "first"), tmp_path / "root" / ".lock"
    lock = load_module("orch_lock")
    theirs = {**first.variables["orch_owner"], "token": "second"}
    lock.take(str(path), first.variables["orch_owner"], SECONDS)
    told: list[TaskResult] = []
    with playbook.repeated(lambda: str(playbook.run(first, told.append, lambda _: None))):
        deadline = time.monotonic() + 60
        while sum(one.task == "Make the lock renewed" for one in told) < 2:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.1)
        with pytest.raises(lock.Held):
            lock.take(str(path), theirs, SECONDS * 10)
    assert [one.result for one in told if one.state != "ok"] == []
    assert json.loads(path.read_text())["token"] == "first"
    time.sleep(SECONDS + 0.5)
    assert "took over" in lock.take(str(path), theirs, SECONDS), "it has ended"
