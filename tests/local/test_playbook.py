"""Check that no process of an interrupted playbook continues."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.provisioning import playbook
from tests.support.processes import find_processes
from tests.support.waiting import wait_until

SLOW_PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.command: sleep 61.25
"""


TASK, PLAYBOOK = "sleep\x0061.25", "orch-ansible-"


def interrupt_task() -> None:
    wait_until(lambda: find_processes(TASK), "the task", seconds=60)
    os.kill(os.getpid(), signal.SIGINT)


def test_interrupted_playbook_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks/slow.yml").write_text(SLOW_PLAY)
    inventory = tmp_path / "hosts"
    inventory.write_text(f"here ansible_connection=local ansible_python_interpreter={sys.executable}\n")
    monkeypatch.setattr(playbook, "SHARE", tmp_path)
    playbooks = playbook.Playbooks(inventory=inventory, state=tmp_path / "state", log=tmp_path / "log")
    before = find_processes(PLAYBOOK).keys()
    threading.Thread(target=interrupt_task, daemon=True).start()
    assert playbook.run(playbooks, "slow", {}, lambda result: None, lambda line: None) == "canceled"
    wait_until(lambda: not find_processes(TASK), "the end of the task", seconds=10)
    wait_until(lambda: not find_processes(PLAYBOOK).keys() - before, "the end of all processes", seconds=10)
