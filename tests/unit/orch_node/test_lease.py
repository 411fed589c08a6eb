"""Find out which process holds a folder, also from another host or container."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from orch_node import lease, machine
from orch_node.lease import Lease
from orch_node.machine import Machine, ProcessIdentity
from orch_node.protocol import files, outcome, values
from orch_node.protocol.outcome import SupervisorProcess
from orch_node.protocol.record import RunNode

from orchestrator.files import LIB, TRAIN
from orchestrator.runs import store
from tests.conftest import ORCH
from tests.support.files import set_age
from tests.support.recorded import RUN_RECORD, make_run
from tests.support.supervised_runs import NODE_PROGRAM, Runs
from tests.support.waiting import wait_until

THIS_MACHINE = machine.this_machine()
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(LIB)}
OTHER_HOST = Machine(host="hostb", machine_id="b", boot="b", pid_namespace="pid:[1]")
REBOOTED = Machine(host="hosta", machine_id="a", boot="before", pid_namespace="pid:[1]")


def make_process(host: Machine = THIS_MACHINE, *, pid: int = 0, start: int = 0) -> ProcessIdentity:
    """Return a process on a machine; without a process id, this process."""
    this_process = machine.this_process()
    return ProcessIdentity(machine=host, pid=pid or this_process.pid, start=start or this_process.start)


def make_dead_process() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def always_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a holder check its lease at every call instead of every few seconds."""
    monkeypatch.setattr(lease, "CHECK_SECONDS", 0.0)


def test_condition_of_a_process_depends_on_its_machine() -> None:
    for host, expected in (
        (THIS_MACHINE, machine.ALIVE),  # here
        (OTHER_HOST, machine.UNKNOWN),  # another host
        (Machine(), machine.UNKNOWN),  # unrecorded
        (replace(THIS_MACHINE, host="x"), machine.ALIVE),  # renamed
    ):
        assert machine.condition_of(make_process(host)) == expected


def test_process_is_dead_if_its_id_is_free_or_used_again_or_a_zombies() -> None:
    assert machine.condition_of(make_process(pid=make_dead_process())) == machine.DEAD
    assert machine.condition_of(make_process(start=1)) == machine.DEAD
    with subprocess.Popen(["true"]) as process:
        wait_until(lambda: is_zombie(process.pid), "its end", 60)
        start = int(Path(f"/proc/{process.pid}/stat").read_text().split()[21])
        condition = machine.condition_of(make_process(pid=process.pid, start=start))
    assert condition == machine.DEAD


def test_machine_was_rebooted_if_name_and_installation_are_the_same() -> None:
    for now, rebooted in (
        (replace(REBOOTED, boot="after"), True),
        (replace(REBOOTED, boot="after", host="hostb"), False),  # cloned disk
        (replace(REBOOTED, boot="after", machine_id="b"), False),  # same name
        (replace(REBOOTED, boot="after", pid_namespace="pid:[2]"), False),  # container of one image
        (REBOOTED, False),  # same boot
    ):
        assert machine.was_rebooted(REBOOTED, now) is rebooted
        assert not machine.was_rebooted(replace(REBOOTED, machine_id=""), replace(now, machine_id=""))


# Leases.


def test_later_start_of_a_run_takes_over_the_lease_and_the_earlier_notices(tmp_path: Path, always_check: None) -> None:
    first = Lease(tmp_path, make_process(OTHER_HOST))
    assert first.problem() == ""
    later = Lease(tmp_path, make_process())
    assert THIS_MACHINE.host in first.problem()
    first.release()
    assert later.problem() == ""


def test_lease_is_renewed_or_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, always_check: None) -> None:
    lease_here = Lease(tmp_path, make_process())
    (tmp_path / files.LEASE).unlink()
    assert lease_here.problem() == ""
    assert (tmp_path / files.LEASE).exists()
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.0)
    set_age(tmp_path / files.LEASE, 1000)
    assert lease_here.problem() == ""
    assert lease.seconds_since_renewal(tmp_path / files.LEASE) < 100


TAKE_LEASE = """
import sys
from pathlib import Path
from orch_node import machine
from orch_node.lease import Lease
Lease(Path(sys.argv[1]), machine.this_process())
"""


# The state of a run.


def make_supervised_run(folder: Path, host: Machine, *, pid: int = 0, leased: bool = True) -> Path:
    """Create the folder of a run whose supervisor is on a machine."""
    folder.mkdir(parents=True)
    process = make_process(host, pid=pid)
    (folder / files.SUPERVISOR).write_text(outcome.render(SupervisorProcess(pid=process.pid, identity=process)))
    if leased:
        (folder / files.LEASE).write_text(values.render(process))
    return folder


def state_of(folder: Path) -> str:
    """Return the state of the run's supervisor."""
    return lease.state_of(folder, lease.read_supervisor(folder))


def test_run_on_another_host_is_judged_by_its_lease(tmp_path: Path) -> None:
    folder = make_supervised_run(tmp_path / "run", OTHER_HOST)
    for age, expected in (
        (0.0, "running"),  # renewed
        (lease.RECENT_SECONDS + 10, "unknown"),  # not renewed recently
        (lease.EXPIRE_SECONDS + 10, "killed"),  # expired
    ):
        set_age(folder / files.LEASE, age)
        assert state_of(folder) == expected
        assert (lease.may_run_elsewhere(folder) is None) is (expected == "killed")
        record = replace(RUN_RECORD, node0=RunNode(node="node0"))
        assert store.state_of(folder, None, record) == expected, "`orch resume` leaves a running one alone"


def test_run_here_is_judged_by_its_process_and_one_elsewhere_without_a_lease_is_unknown(tmp_path: Path) -> None:
    assert state_of(make_supervised_run(tmp_path / "a", THIS_MACHINE)) == "running"
    assert state_of(make_supervised_run(tmp_path / "b", THIS_MACHINE, pid=make_dead_process())) == "killed"
    assert lease.may_run_elsewhere(tmp_path / "a") is None
    assert state_of(make_supervised_run(tmp_path / "c", OTHER_HOST, leased=False)) == "unknown"


# Two hosts that share one folder: the second one must not end, resume or clean a living run. The run is on this host;
# the second host is a namespace with separate processes and another name.

SECOND_HOST = ("unshare", "--pid", "--uts", "--mount", "--fork", "--mount-proc", "--kill-child")
RUN = "20260101-120000-qa-0000"


def on_other_host(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the second host to its end."""
    script = 'hostname hostb && exec "$@"'
    return subprocess.run([*SECOND_HOST, "sh", "-c", script, "sh", *command], capture_output=True, text=True, input="")


needs_namespaces = pytest.mark.skipif(on_other_host("true").returncode != 0, reason="this system creates no namespaces")


def make_recorded_run(base: Path, run_id: str, **changes: Any) -> Path:
    """Create the folder of a run that has not begun."""
    folder = make_run(base, run_id, ranks=2, nodes=1, train=str(TRAIN), python=sys.executable, **changes)
    for name in ("outcome.json", "events.jsonl"):
        (folder / name).unlink()
    return folder


@pytest.fixture
def living_run(tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of a run that trains on the first host."""
    run = make_recorded_run(tmp_path / "runs", RUN)
    process = Runs(base=tmp_path / "runs").start_ranks(name=RUN)
    yield run
    process.terminate()
    process.wait(30)


@needs_namespaces
def test_other_host_leaves_a_living_run_alone_until_it_stops_it(living_run: Path) -> None:
    (living_run / "shm-node0.json").write_text('{"before": {}, "used": {}}')
    result = on_other_host(*NODE_PROGRAM, "cleanup", "clean", str(living_run.parent))
    assert json.loads(result.stdout)["ended"] == {}
    assert (living_run / "shm-node0.json").exists()
    assert not (living_run / files.OUTCOME).exists()
    stop = (*ORCH, "stop", RUN, "--runs-dir", str(living_run.parent))
    pid = supervisor_pid(living_run)
    os.kill(pid, signal.SIGSTOP)
    try:
        result = on_other_host(*stop)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (result.returncode, "not visible here" in result.stdout) == (1, True), "no success before its end"
    wait_until(lambda: (living_run / files.OUTCOME).exists(), "the run sees the file stop", 60)
    assert store.load(living_run).state == "stopped"
    assert on_other_host(*stop).returncode == 0


@needs_namespaces
def test_earlier_start_of_a_run_ends_when_a_later_one_writes_its_folder(living_run: Path) -> None:
    result = on_other_host("env", f"PYTHONPATH={LIB}", sys.executable, "-c", TAKE_LEASE, str(living_run))
    assert result.returncode == 0, result.stderr
    content = lease.read(living_run / files.LEASE)
    pid = supervisor_pid(living_run)
    wait_until(lambda: not Path(f"/proc/{pid}/environ").exists() or is_zombie(pid), "its end", 60)
    assert not (living_run / files.OUTCOME).exists(), "the later start writes it"
    assert lease.read(living_run / files.LEASE) == content


def supervisor_pid(run: Path) -> int:
    return int(json.loads((run / files.SUPERVISOR).read_text())["pid"])


def is_zombie(pid: int) -> bool:
    """Return whether a process has ended and waits for its parent."""
    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
