"""Provision with two controllers at once, with leftover locks and on a full disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.sites import LOCK, ROOT, Site, nodes_by_name, run_on, wait_for_output

pytestmark = pytest.mark.cluster


def is_locked(site: Site, node: str) -> bool:
    return ".lock" in run_on(site, node, "ls", "-A", ROOT).split()


def test_second_controller_is_refused_and_names_the_first(site: Site, tmp_path: Path) -> None:
    site.write_inventory("node0", "node1")
    second_controller = replace(site, folder=tmp_path)
    second_controller.write_inventory("node0", "node1")
    process = site.start("--json", "--verify")  # with --verify it runs for long enough
    wait_for_output(process, "lock: Make the lock present")
    report = nodes_by_name(second_controller.orch(code=1))
    out, err = process.communicate(timeout=120)
    for node in report.values():
        assert f"(process {process.pid}) has been provisioning this node since" in node["problem"]
        assert f"if it has ended, remove {LOCK}" in node["problem"]
        assert (node["failed"], node["changed"]) == (1, 0)
    assert process.returncode == 0, err
    assert json.loads(out)["state"] == "done"
    assert not is_locked(site, "node0")
    assert not is_locked(site, "node1")


def test_leftover_lock_is_taken_over_after_hours(site: Site) -> None:
    site.write_inventory("node0", "node1")
    lock = {"token": "x", "user": "eve", "host": "far", "pid": "7", "what": "sync"}
    lock |= {"started": "then"}
    run_on(site, "node0", "sh", "-c", f"echo '{json.dumps(lock)}' >{LOCK}")
    report = nodes_by_name(site.orch(command="sync", code=1))
    assert "eve@far (process 7) has been syncing" in report["node0"]["problem"]
    assert report["node1"]["failed"] == 0
    assert not is_locked(site, "node1")
    run_on(site, "node0", "touch", "-d", "7 hours ago", LOCK)
    process = site.start(command="sync")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "node0: took over a lock that was taken 7 hours ago: eve@far (process 7)" in err
    assert not is_locked(site, "node0")


def test_full_disk_is_explained_and_provision_succeeds_on_a_larger_disk(site: Site) -> None:
    """Provision as root, whose folder is /opt/orch; here it is on a file system that grows during the test."""
    root = "/opt/orch"
    mount = f"mkdir -p {root} && mount -t tmpfs -o size=100m,mode=755 none {root}"
    site.cluster.exec("node2", ("sh", "-c", mount))
    site.write_inventory("node2", ansible_user="root")
    report_of_check = nodes_by_name(site.orch(code=1))["node2"]
    assert f"0.1 GiB free for {root}, needs 5.0" in report_of_check["problem"]
    site.write_inventory("node2", ansible_user="root", orch_limits={"disk_gb": 0})
    report_of_installation = nodes_by_name(site.orch(code=1))["node2"]
    assert "its disk is full" in report_of_installation["problem"]
    assert ".lock" not in site.cluster.exec("node2", ("ls", "-A", root)).split()
    site.cluster.exec("node2", ("mount", "-o", "remount,size=6g", root))
    assert site.orch()["state"] == "done"
    (row,) = site.orch(command="nodes")["nodes"]
    assert row["state"] == "verified"
    assert site.cluster.exec("node2", ("stat", "-c", "%U", f"{root}/train/node.py")) == "root\n"
    site.cluster.exec("node2", ("umount", root))
