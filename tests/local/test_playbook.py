"""What an interrupted playbook leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.provisioning import playbook
from tests.support.waiting import until

SLOW = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.command: sleep 61.25
"""


TASK, PLAYBOOK = b"sleep\x0061.25", b"orch-ansible-"


def at_work(*marks: bytes) -> set[int]:
    """The processes whose words hold one of these."""
    found = set()
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            said = words.read_bytes()
            if any(mark in said for mark in marks):
                found.add(int(words.parent.name))
    return found


def interrupt() -> None:
    until(lambda: at_work(TASK), "the task", seconds=60)
    os.kill(os.getpid(), signal.SIGINT)


def test_no_worker_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks/slow.yml").write_text(SLOW)
    inventory = tmp_path / "hosts"
    python = f"ansible_python_interpreter={sys.executable}"
    inventory.write_text(f"here ansible_connection=local {python}\n")
    monkeypatch.setattr(playbook, "SHARE", tmp_path)
    asked = playbook.Playbook(
        name="slow", inventory=inventory, variables={}, state=tmp_path / "state", log=tmp_path / "log"
    )
    before = at_work(PLAYBOOK)
    threading.Thread(target=interrupt, daemon=True).start()
    assert playbook.run(asked, lambda result: None, lambda line: None) == "canceled"
    until(lambda: not at_work(TASK, PLAYBOOK) - before, "the end of all", seconds=10)


def test_program_that_only_names_the_folder_is_not_ended(tmp_path: Path) -> None:
    folder = str(tmp_path / "orch-ansible-x")
    environment = {**os.environ, playbook.FOLDER_VARIABLE: folder}
    program = "import subprocess, sys; subprocess.Popen(['sleep', '61.75']); sys.stdin.read()"
    words = [sys.executable, "-c", program, f"{folder}/env/extravars"]
    with (
        subprocess.Popen([*words, "pager"], stdin=subprocess.PIPE, start_new_session=True) as pager,
        subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, env=environment) as worker,
    ):
        until(lambda: len(at_work(b"sleep\x0061.75")) == 2, "both programs", seconds=60)
        playbook.end_workers(folder)
        assert worker.wait(30) == -signal.SIGKILL
        until(lambda: len(at_work(b"sleep\x0061.75")) == 1, "the worker's program", seconds=30)
        assert pager.poll() is None
        os.killpg(pager.pid, signal.SIGKILL)
