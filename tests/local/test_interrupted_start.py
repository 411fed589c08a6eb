"""Interrupt `orch train` while it starts a run, and a playbook: nothing may be left running."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.provisioning import playbook
from orchestrator.runs import queued
from tests.local.kubernetes_runs import PYTORCHJOB
from tests.local.runs import last_run, read_events, read_outcome, run_processes, start_orch, wait_for_exit, write_script
from tests.local.ssh_node import INVENTORY, TWO_RANKS, SshNode
from tests.support.files import write_program
from tests.support.kubernetes_api import Api
from tests.support.processes import find_processes
from tests.support.waiting import wait_until

SFTP_SERVER = Path("/usr/lib/openssh/sftp-server")


@pytest.fixture
def sftp_server(tmp_path: Path) -> str:
    """Return a program that serves files of the test sshd once the file `serve` exists."""
    if not SFTP_SERVER.exists():
        pytest.skip(f"no {SFTP_SERVER}: apt-get install openssh-sftp-server")
    text = (
        f"#!/bin/sh\n: > {tmp_path}/copying\n"
        f"for i in $(seq 1200); do [ -e {tmp_path}/serve ] && break; sleep 0.1; done\nexec {SFTP_SERVER}\n"
    )
    return str(write_program(tmp_path / "sftp-server", text))


def test_start_that_is_interrupted_while_files_are_copied_leaves_nothing(ssh_node: SshNode, tmp_path: Path) -> None:
    with start_orch(tmp_path, "train", "own.py", *INVENTORY, *TWO_RANKS) as process:
        wait_until((tmp_path / "copying").exists, "a copy of files")
        process.send_signal(signal.SIGTERM)
        ended = wait_for_exit(process, 130)
    (tmp_path / "serve").touch()
    run = last_run(tmp_path)
    assert "Traceback" not in ended.stdout + ended.stderr
    assert read_outcome(run)["state"] == "stopped"
    assert not (ssh_node.root / "runs" / run.name / "supervisor.json").exists()
    wait_until(lambda: run_processes(run) == [], "no process of the run")


@pytest.mark.parametrize("file", [queued.MARK, queued.LOG])
def test_run_that_is_interrupted_while_its_queue_starts_does_not_start_later(tmp_path: Path, file: str) -> None:
    with start_orch(tmp_path, "train", write_script(tmp_path), "--wait-for-cores") as process:
        wait_until(lambda: [*tmp_path.glob(f"runs/2*/{file}")], f"the file {file}")
        process.send_signal(signal.SIGINT)
        ended = wait_for_exit(process, 130)
    run = last_run(tmp_path)
    assert f"Stopped run {run.name}" in ended.stderr
    wait_until(lambda: not queued.is_active(run), "the end of the queue")
    assert read_outcome(run)["state"] == "stopped"
    assert read_events(run, "started") == []


def test_bench_that_is_interrupted_ends_its_run(tmp_path: Path) -> None:
    with start_orch(tmp_path, "bench", "--ppn", "1", "--backend", "gloo") as process:
        wait_until(lambda: [*tmp_path.glob("runs/2*/supervisor.json")], "a run")
        process.send_signal(signal.SIGTERM)
        wait_for_exit(process, 130)
    run = last_run(tmp_path)
    assert read_outcome(run)["state"] == "stopped"
    wait_until(lambda: run_processes(run) == [], "no process of the run")


def test_start_that_is_interrupted_while_objects_are_created_leaves_nothing(api: Api, tmp_path: Path) -> None:
    """Interrupt it before the test API server handles the request that creates the job."""
    received, released = threading.Event(), threading.Event()
    handler: Any = api.server.RequestHandlerClass
    route = handler.route

    def hold(request: Any, path: str, body: Any) -> None:
        if request.command == "PATCH" and "/pytorchjobs/" in path:
            received.set()
            released.wait(60)
        route(request, path, body)

    handler.route = hold
    with start_orch(tmp_path, "train", write_script(tmp_path), *PYTORCHJOB) as process:
        assert received.wait(60)
        threading.Timer(1.0, released.set).start()
        process.send_signal(signal.SIGINT)
        ended = wait_for_exit(process, 130)
    assert "Traceback" not in ended.stdout + ended.stderr
    assert api.names("pytorchjobs") == api.names("configmaps") == []
    assert [*(tmp_path / "runs").glob("2*")] == []


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
