"""Check that no process of an interrupted playbook continues."""

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
from tests.support.waiting import wait_until

SLOW_PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.command: sleep 61.25
"""


TASK, PLAYBOOK = b"sleep\x0061.25", b"orch-ansible-"


def find_processes(*texts: bytes) -> set[int]:
    """Return the ids of the processes whose command line contains one of these texts."""
    pids = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes()
            if any(text in command for text in texts):
                pids.add(int(path.parent.name))
    return pids


def interrupt_task() -> None:
    wait_until(lambda: find_processes(TASK), "the task", seconds=60)
    os.kill(os.getpid(), signal.SIGINT)


def test_interrupted_playbook_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks/slow.yml").write_text(SLOW_PLAY)
    inventory = tmp_path / "hosts"
    inventory.write_text(f"here ansible_connection=local ansible_python_interpreter={sys.executable}\n")
    monkeypatch.setattr(playbook, "SHARE", tmp_path)
    slow = playbook.Playbook(
        name="slow", inventory=inventory, variables={}, state=tmp_path / "state", log=tmp_path / "log"
    )
    before = find_processes(PLAYBOOK)
    threading.Thread(target=interrupt_task, daemon=True).start()
    assert playbook.run(slow, lambda result: None, lambda line: None) == "canceled"
    wait_until(lambda: not find_processes(TASK, PLAYBOOK) - before, "the end of all processes", seconds=10)


def test_program_that_only_names_the_folder_is_not_ended(tmp_path: Path) -> None:
    folder = str(tmp_path / "orch-ansible-x")
    environment = {**os.environ, playbook.FOLDER_VARIABLE: folder}
    program = "import subprocess, sys; subprocess.Popen(['sleep', '61.75']); sys.stdin.read()"
    command = [sys.executable, "-c", program, f"{folder}/env/extravars"]
    with (
        subprocess.Popen([*command, "pager"], stdin=subprocess.PIPE, start_new_session=True) as pager,
        subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=environment) as worker,
    ):
        wait_until(lambda: len(find_processes(b"sleep\x0061.75")) == 2, "both programs", seconds=60)
        playbook.end_workers(folder)
        assert worker.wait(30) == -signal.SIGKILL
        wait_until(lambda: len(find_processes(b"sleep\x0061.75")) == 1, "the worker's program", seconds=30)
        assert pager.poll() is None
        os.killpg(pager.pid, signal.SIGKILL)
