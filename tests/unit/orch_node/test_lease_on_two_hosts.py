"""Two hosts that share one folder: the second one must not end, resume or clean a living run.

The run is on this host; the second host is a namespace with separate processes and another name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from orch_node import lease
from orch_node.protocol import files

from orchestrator.files import LIB, TRAIN
from orchestrator.runs import store
from tests.support.recorded import make_run
from tests.support.supervised_runs import NODE_PROGRAM, Runs
from tests.support.waiting import wait_until
from tests.unit.orch_node.test_lease import TAKE_LEASE

OTHER_HOST = ("unshare", "--pid", "--uts", "--mount", "--fork", "--mount-proc", "--kill-child")
RUN = "20260101-120000-qa-0000"


def on_other_host(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the second host to its end."""
    script = 'hostname hostb && exec "$@"'
    return subprocess.run([*OTHER_HOST, "sh", "-c", script, "sh", *command], capture_output=True, text=True, input="")


pytestmark = pytest.mark.skipif(on_other_host("true").returncode != 0, reason="this system creates no namespaces")


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


def test_other_host_leaves_a_living_run_alone_until_it_stops_it(living_run: Path) -> None:
    (living_run / "shm-node0.json").write_text('{"before": {}, "used": {}}')
    result = on_other_host(*NODE_PROGRAM, "cleanup", "clean", str(living_run.parent))
    assert json.loads(result.stdout)["ended"] == {}
    assert (living_run / "shm-node0.json").exists()
    second_run = "20260101-130000-qa-0001"
    make_recorded_run(living_run.parent, second_run, output_dir=f"{living_run}/output")
    outcome = Runs(base=living_run.parent).run("exit(rank)", name=second_run)
    assert (outcome["state"], RUN in outcome["problem"]) == ("refused", True)
    assert not (living_run / files.OUTCOME).exists()
    stop = (sys.executable, "-m", "orchestrator.cli.main", "stop", RUN, "--runs-dir", str(living_run.parent))
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


def test_earlier_start_of_a_run_ends_when_a_later_one_writes_its_folder(living_run: Path) -> None:
    result = on_other_host("env", f"PYTHONPATH={LIB}", sys.executable, "-c", TAKE_LEASE, str(living_run), RUN)
    assert result.stdout == "taken\n", result.stderr
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
