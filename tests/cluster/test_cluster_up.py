"""Check that the nodes of the test cluster are reachable and bare."""

from __future__ import annotations

import subprocess

import pytest

from tests.cluster.conftest import TestCluster

pytestmark = pytest.mark.cluster


def test_nodes_are_in_the_inventory_and_bare(cluster_session: TestCluster) -> None:
    cluster = cluster_session
    for node in cluster.nodes:
        tools = "rsync pip uv mpiexec mpiexec.hydra numactl gcc orch"
        assert cluster.ssh(node, f"for t in {tools}; do command -v $t; done").stdout == ""
        assert cluster.ssh(node, "find /opt /srv /usr/local/lib -type f").stdout == ""
        assert cluster.ssh(node, "ls -A ~").stdout.split() == [".bash_logout", ".bashrc", ".profile", ".ssh"]
    argv = ["ansible", "-i", str(cluster.inventory), "all", "-m", "ansible.builtin.ping", "-o"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line.split()[0] for line in done.stdout.splitlines() if "pong" in line) == list(cluster.nodes)
