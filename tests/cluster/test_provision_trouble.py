"""Two controllers at once, locks that were left behind, disks that are full."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.sites import LOCK, ROOT, Site, nodes_of, on, wait_for

pytestmark = pytest.mark.cluster


def locked(site: Site, node: str) -> bool:
    return ".lock" in on(site, node, "ls", "-A", ROOT).split()


def test_of_two_controllers_the_second_is_told_who_is_at_work(site: Site, tmp_path: Path) -> None:
    site.describe("node0", "node1")
    other = replace(site, folder=tmp_path)
    other.describe("node0", "node1")
    first = site.start("--json", "--verify")  # --verify: it takes its time
    wait_for(first, "lock: Make the lock present")
    refused = nodes_of(other.orch(code=1))
    out, err = first.communicate(timeout=120)
    for node in refused.values():
        assert f"(process {first.pid}) has been provisioning this node since" in node["problem"]
        assert f"if it has ended, remove {LOCK}" in node["problem"]
        assert (node["failed"], node["changed"]) == (1, 0)
    assert first.returncode == 0, err
    assert json.loads(out)["state"] == "done"
    assert not locked(site, "node0")
    assert not locked(site, "node1")


def test_a_lock_left_behind_holds_for_an_hour(site: Site) -> None:
    site.describe("node0", "node1")
    left = {"token": "x", "user": "eve", "host": "far", "pid": "7", "what": "sync"}
    left |= {"started": "then", "boot": "x", "renewed": 0.0, "machine": ["far", "x"]}
    on(site, "node0", "sh", "-c", f"echo '{json.dumps(left)}' >{LOCK}")
    report = nodes_of(site.orch(command="sync", code=1))
    assert "eve@far (process 7) has been syncing" in report["node0"]["problem"]
    assert report["node1"]["failed"] == 0
    assert not locked(site, "node1")
    on(site, "node0", "touch", "-d", "2 hours ago", LOCK)
    process = site.start(command="sync")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "node0: took over a lock that was renewed 120 minutes ago: eve@far (process 7)" in err
    assert not locked(site, "node0")


def test_a_full_disk_is_said_and_then_root_carries_on(site: Site) -> None:
    """Root's own folder, /opt/orch, here on a disk that is too small at first."""
    root = "/opt/orch"
    mount = f"mkdir -p {root} && mount -t tmpfs -o size=100m none {root}"
    site.cluster.exec("node2", ("sh", "-c", mount))
    site.describe("node2", ansible_user="root")
    asked = nodes_of(site.orch(code=1))["node2"]
    assert f"0.1 GiB free for {root}, needs 5.0" in asked["problem"]
    site.describe("node2", ansible_user="root", orch_limits={"disk_gb": 0})
    full = nodes_of(site.orch(code=1))["node2"]
    assert "its disk is full" in full["problem"]
    assert ".lock" not in site.cluster.exec("node2", ("ls", "-A", root)).split()
    site.cluster.exec("node2", ("mount", "-o", "remount,size=6g", root))
    assert site.orch()["state"] == "done"
    (row,) = site.orch(command="nodes")["nodes"]
    assert row["state"] == "verified"
    assert site.cluster.exec("node2", ("stat", "-c", "%U", f"{root}/train/node.py")) == "root\n"
    site.cluster.exec("node2", ("umount", root))
