"""What child processes of a rank may do, and what a rank inherits from its launcher."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from orch_node.rank import child_processes

from orchestrator.files import LIB


def run_child(folder: Path, program: str) -> str:
    """Run a Python program as a process of rank 0 of 2."""
    environment = {**os.environ, "ORCH_RUN_DIR": str(folder), "PYTHONPATH": str(folder)}
    (folder / "ranks").mkdir(exist_ok=True)
    child_processes.begin(0, 2, environment)
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True).stdout


@pytest.fixture(autouse=True)
def own_run_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORCH_RUN_DIR", str(tmp_path))


def test_child_imports_the_sitecustomize_of_the_user_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    program = "import sys; print([name for name in sys.modules if name.startswith('orch_node')], len(sys.path) > 2)"
    assert run_child(tmp_path, program).splitlines() == ["customized", "[] True"]


def test_group_of_a_child_with_another_environment_is_seen_from_outside(tmp_path: Path) -> None:
    program = """
import torch
input("imported")
store = torch.distributed.TCPStore("127.0.0.1", 0, 1, True)
input("group")
"""
    command = [sys.executable, "-c", program]
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    forked.start()  # as a worker of a DataLoader
    with subprocess.Popen(command, env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.read(len("imported"))
        unwatched = {folder.name: folder for folder in child_processes.unwatched_processes()}
        assert str(forked.pid) not in unwatched
        assert not child_processes.has_group(unwatched[str(child.pid)])
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.read(len("group"))
        assert child_processes.has_group(unwatched[str(child.pid)])
        child.kill()
    forked.kill()
    forked.join()


def test_rank_that_replaces_its_process_is_refused_but_not_its_child(tmp_path: Path) -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(LIB)!r})
from orch_node.rank import child_processes
child_processes.refuse_replacement(2)
if os.fork() == 0:
    os.execlp("echo", "echo", "child")
os.wait()
try:
    os.execvpe("echo", ["echo", "replaced"], os.environ)
except Exception as error:
    print(type(error).__name__)
"""
    assert run_child(tmp_path, program).split() == ["child", "RankError"]


CLOSE_LISTENING = """
import os, sys
from orch_node.rank.process import close_listening
close_listening()
for fd in map(int, sys.argv[1:]):
    try: print(bool(os.fstat(fd)))
    except OSError: print(False)
"""


def test_rank_closes_inherited_listening_sockets() -> None:
    """Pass the sockets open and without a name, as hydra does."""
    first, second = socket.socketpair()
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as server, first, second:
        fds = (server.fileno(), first.fileno(), writer)
        command = [sys.executable, "-c", CLOSE_LISTENING, *map(str, fds)]
        environment = os.environ | {"PYTHONPATH": str(LIB)}
        result = subprocess.run(command, env=environment, pass_fds=fds, capture_output=True, text=True, check=True)
    os.close(reader)
    os.close(writer)
    assert result.stdout.split() == ["False", "True", "True"]
