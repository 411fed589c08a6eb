"""Signals reach the process that is meant, and not another one that has its number by now."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from orch_node import process_handle
from orch_node.process_handle import ProcessHandle

from orchestrator.runs.follow import LocalRun
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.connections.mirror import Mirror
from tests.support.hosts import possible
from tests.support.waiting import until

LIB = Path(process_handle.__file__).parents[1]
# In a namespace of its own: a child ends, is reaped, and the next process gets its number. Then the
# rank's wrapper is told to stop, as a lingering one is.
REUSED = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
if sys.argv[2] == "old":
    del os.pidfd_open
from orch_node.rank.process import SignalForwarder

def fork(seconds):
    child = os.fork()
    if not child:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(seconds)
        os._exit(0)
    return child

child = fork(0.3)
stop = SignalForwarder(child)
os.wait4(child, 0)
Path("/proc/sys/kernel/ns_last_pid").write_text(str(child - 1))
victim = fork(1.0)
assert victim == child, (victim, child)
time.sleep(0.3)
os.kill(os.getpid(), signal.SIGTERM)
assert stop.stop_requested
print("VICTIM", os.waitstatus_to_exitcode(os.wait4(victim, 0)[1]))
"""


@pytest.mark.skipif(bool(possible()), reason=possible())
@pytest.mark.parametrize("kernel", ["new", "old"])
def test_a_lingering_wrapper_signals_no_other_process(kernel: str) -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", REUSED]
    process = subprocess.run([*command, str(LIB), kernel], capture_output=True, text=True, timeout=30)
    assert process.stdout.strip() == "VICTIM 0", process.stderr


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def supervisor(run: Path) -> subprocess.Popen[bytes]:
    """A process that is called as a supervisor is."""
    code = "import time; time.sleep(60)"
    started = subprocess.Popen([sys.executable, "-c", code, "supervise", str(run), "--", "x"])
    words = Path(f"/proc/{started.pid}/cmdline")
    until(lambda: b"supervise" in words.read_bytes(), "its arguments")
    return started


def ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return process.poll() is not None


@pytest.mark.parametrize("new", [True, False])
def test_a_handle_is_of_one_process(
    sleeper: subprocess.Popen[bytes], new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not new:
        monkeypatch.delattr(os, "pidfd_open")
    start = process_handle.start_time(sleeper.pid)
    assert start is not None
    assert not process_handle.send(sleeper.pid, start - 1, signal.SIGKILL)
    handle = ProcessHandle(sleeper.pid)
    assert handle.send(0)
    assert process_handle.send(sleeper.pid, start, signal.SIGTERM)
    sleeper.wait()
    assert not handle.send(0)
    handle.close()
    assert not ProcessHandle(sleeper.pid).send(0), "there is no such process"


def test_ctrl_c_reaches_the_supervisor_on_its_node_alone(
    sshd: str, tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    """The number of a supervisor is in a file, which may be older than the process."""
    run = tmp_path / "runs" / "a run"
    mirror = Mirror(Ssh("far", sshd), str(run), tmp_path / "copy", ranks=1)
    with supervisor(run.with_name("a run-2")) as other, supervisor(run) as meant:
        for process in (sleeper, other):
            mirror.terminate(process.pid)
        assert not ends(sleeper, 0.5)
        assert other.poll() is None
        mirror.terminate(meant.pid)
        assert ends(meant, 5)
        other.kill()
    mirror.terminate(meant.pid)
    mirror.remote.reset()


def test_ctrl_c_reaches_the_supervisor_of_this_machine_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    run = tmp_path / "runs" / "a run"
    here = LocalRun(run)
    here.terminate(sleeper.pid)
    with subprocess.Popen(["tail", "-f", "/dev/null", "--", str(run)], stderr=-3) as pager:
        here.terminate(pager.pid)
        assert not ends(pager, 0.3), "it only shows the run's folder"
        pager.kill()
    assert sleeper.poll() is None
    with supervisor(run) as meant:
        here.terminate(meant.pid)
        assert ends(meant, 5)
    here.terminate(meant.pid)


def test_a_process_that_ends_while_it_is_looked_at_is_no_error(
    sshd: str, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file in /proc was there to be opened, and cannot be read any more."""
    node = Ssh("far", sshd)
    assert node.alive(sleeper.pid, "sleep\0")
    opened = node.sftp.open

    def opened_in_time(path: str, mode: str) -> object:
        file = opened(path, mode)
        sleeper.kill()
        sleeper.wait()
        return file

    monkeypatch.setattr(node.sftp, "open", opened_in_time)
    assert not node.alive(sleeper.pid, "sleep\0")
    node.reset()
