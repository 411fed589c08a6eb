"""Check that the nodes of the test cluster are reachable and bare, and that it can shrink."""

from __future__ import annotations

import subprocess

import pytest

from tests.cluster.conftest import TestCluster

pytestmark = pytest.mark.cluster


def test_new_node_has_only_a_user_a_key_and_python(cluster_session: TestCluster) -> None:
    cluster = cluster_session
    tools = "rsync pip uv mpiexec mpiexec.hydra numactl gcc orch"
    for node in cluster.nodes:
        for user in ("vagrant", "root"):
            done = cluster.ssh(node, "hostname; id -un", user=user)
            assert done.stdout.split() == [node, user], done.stderr
        assert cluster.ssh(node, f"for t in {tools}; do command -v $t; done").stdout == ""
        assert "ModuleNotFoundError" in cluster.ssh(node, "python3 -c 'import torch'").stderr
        assert cluster.ssh(node, "find /opt /srv /usr/local/lib -type f").stdout == ""
        assert cluster.ssh(node, "ls ~/.ssh", user="root").stdout.split() == ["authorized_keys"]
        assert cluster.ssh(node, "ls -A ~").stdout.split() == [*(".bash_logout", ".bashrc", ".profile", ".ssh")]


def test_each_node_has_its_own_host_keys_and_the_private_key_is_private(cluster_session: TestCluster) -> None:
    state = cluster_session.state
    keys = [line.split()[1:] for line in (state / "known_hosts").read_text().splitlines()]
    assert {kind for kind, _ in keys} >= {"ssh-ed25519", "ssh-rsa"}
    assert len({key for _, key in keys}) == len(keys) >= 2 * len(cluster_session.nodes)
    assert (state / "id_ed25519").stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700


def test_inventory_has_all_nodes_and_forgets_a_removed_one(cluster_session: TestCluster) -> None:
    known_hosts = cluster_session.state / "known_hosts"
    removed = cluster_session.address("node3")
    assert removed in known_hosts.read_text()
    cluster_session.up(nodes=3)
    assert removed not in known_hosts.read_text()
    argv = ["ansible", "-i", str(cluster_session.inventory), "all", "-m", "ansible.builtin.ping", "-o"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line.split()[0] for line in done.stdout.splitlines() if "pong" in line) == list(cluster_session.nodes)
