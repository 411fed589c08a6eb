"""`orch bench` on two hosts of this machine, one with half of its CPU time and a shaped link."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import report_missing
from tests.local.runs import expect_exit
from tests.local.workspaces import make_hosts
from tests.support.hosts import Host, ip_in, run_program

CGROUPS = Path("/sys/fs/cgroup")
PERIOD, MEGABITS = 100_000, 300


@contextmanager
def half_of_a_core(host: Host) -> Iterator[None]:
    """Limit all programs of a host to half of the time of its core."""
    version_1 = (CGROUPS / "cpu/cgroup.procs").exists()
    top = CGROUPS / "cpu" if version_1 else CGROUPS
    if not os.access(top / "cgroup.procs", os.W_OK):
        report_missing("needs a writable cgroup with the controller `cpu`")
    if not version_1:
        (top / "cgroup.subtree_control").write_text("+cpu")
    folder = top / f"orch-test-{host.process.pid}"
    folder.mkdir()
    if version_1:
        (folder / "cpu.cfs_quota_us").write_text(str(PERIOD // 2))
    else:
        (folder / "cpu.max").write_text(f"{PERIOD // 2} {PERIOD}")
    pid = host.process.pid
    for member in [str(pid), *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]:
        (folder / "cgroup.procs").write_text(member)
    try:
        yield
    finally:
        for member in (folder / "cgroup.procs").read_text().split():
            (top / "cgroup.procs").write_text(member)
        folder.rmdir()


def test_slow_node_and_slow_link_are_named_and_the_measurement_is_stored(tmp_path: Path) -> None:
    with make_hosts(tmp_path) as workspace, half_of_a_core(workspace.lab.hosts[1]):
        shape = ("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{MEGABITS}mbit", "burst", "256k")
        run_program(*ip_in(workspace.lab.hosts[0].process.pid)[:-1], *shape, "latency", "50ms")
        inventory = workspace.options[-1]
        process = expect_exit(workspace.orch("bench", inventory, "--backend", "gloo", "--json"), 0)
        report = json.loads(process.stdout)
        slow = {item["subject"]: item for item in report["slow"]}
        assert "its cgroup limits it to the time of 0.5 of 1 core" in slow["node1"]["cause"], report
        assert slow["node0 to node1"]["value"] == pytest.approx(MEGABITS / 1000, rel=0.3)
        assert report["runs"][0]["samples"] > 0
        assert set(report["runs"][0]["reductions"]) >= {"1024", "1048576"}
        (page,) = tmp_path.glob("runs/*/bench.html")
        assert "node0 to node1" in page.read_text()
        stored = [json.loads(path.read_text()) for path in tmp_path.rglob("measured.json")]
        busy = "because other programs used the cores of" in process.stderr
        assert [record["runs"] for record in stored] == ([] if busy else [report["runs"]])
