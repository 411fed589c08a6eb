"""Start the test cluster, and check that its nodes are reachable, bare, and can be broken and repaired."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.conftest import CPUSETS, TestCluster, is_cluster_kept

pytestmark = pytest.mark.cluster


def test_every_node_accepts_ssh_with_verified_host_key(cluster: TestCluster) -> None:
    for node in cluster.nodes:
        for user in ("vagrant", "root"):
            done = cluster.ssh(node, "hostname; id -un", user=user)
            assert done.stdout.split() == [node, user], done.stderr


def test_ssh_refuses_wrong_host_key(cluster: TestCluster, tmp_path: Path) -> None:
    known_hosts = (cluster.state / "known_hosts").read_text()
    node0, node1 = cluster.address("node0"), cluster.address("node1")
    (tmp_path / "known_hosts").write_text(known_hosts.replace(node0, "?").replace(node1, node0))
    argv = ["ssh", "-F", str(cluster.ssh_config), "-o", "BatchMode=yes"]
    argv += ["-o", f"UserKnownHostsFile={tmp_path / 'known_hosts'}", "node0", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_host_keys_differ_between_nodes(cluster: TestCluster) -> None:
    keys = [line.split()[1:] for line in (cluster.state / "known_hosts").read_text().splitlines()]
    assert {kind for kind, _ in keys} >= {"ssh-ed25519", "ssh-rsa"}
    assert len({key for _, key in keys}) == len(keys) >= 2 * len(cluster.nodes)


def test_private_key_is_readable_only_by_its_owner(cluster: TestCluster) -> None:
    assert (cluster.state / "id_ed25519").stat().st_mode & 0o777 == 0o600
    assert cluster.state.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def bare(cluster: TestCluster) -> TestCluster:
    """Return a cluster on which nothing is installed, because the tests of this file run before those that provision.

    A kept cluster may have been provisioned.
    """
    if is_cluster_kept():
        pytest.skip("ORCH_KEEP_CLUSTER is set: the nodes may have been provisioned")
    return cluster


def test_new_node_has_no_tools_packages_or_files(bare: TestCluster) -> None:
    tools = "rsync pip uv mpiexec mpiexec.hydra numactl gcc orch"
    for node in bare.nodes:
        assert bare.ssh(node, f"for t in {tools}; do command -v $t; done").stdout == ""
        assert "ModuleNotFoundError" in bare.ssh(node, "python3 -c 'import torch'").stderr
        assert bare.ssh(node, "find /opt /srv /usr/local/lib -type f").stdout == ""
        assert bare.ssh(node, "ls ~/.ssh", user="root").stdout.split() == ["authorized_keys"]
        assert bare.ssh(node, "ls -A ~").stdout.split() == [*(".bash_logout", ".bashrc", ".profile", ".ssh")]


def test_renewed_node_has_new_host_keys(cluster: TestCluster) -> None:
    old_lines = (cluster.state / "known_hosts").read_text().splitlines()
    boot_time = "stat --format %Y /proc/1"
    boot_times = [cluster.ssh(node, boot_time).stdout for node in ("node0", "node1")]
    cluster.renew("node2")
    assert [cluster.ssh(node, boot_time).stdout for node in ("node0", "node1")] == boot_times
    new_lines = (cluster.state / "known_hosts").read_text().splitlines()
    changed_addresses = {line.split()[0] for line in set(old_lines) ^ set(new_lines)}
    assert changed_addresses == {cluster.address("node2")}
    assert cluster.ssh("node2", "hostname").stdout.strip() == "node2"


def test_cluster_up_adds_and_removes_nodes(cluster: TestCluster) -> None:
    before = (cluster.inventory / "more-nodes.yml").read_text()
    cluster.up(nodes=4)
    assert cluster.ssh("node3", "hostname").stdout.strip() == "node3"
    assert "node3" in (cluster.inventory / "more-nodes.yml").read_text()
    cluster.up()
    assert (cluster.inventory / "more-nodes.yml").read_text().splitlines()[1:] == before.splitlines()[1:]
    assert cluster.address("node3") not in (cluster.state / "known_hosts").read_text()


def test_replaced_hosts_file_outlives_restart_of_node(cluster: TestCluster) -> None:
    """Replace the file as a role of Ansible does; the node's `boot` unmounts Docker's own file at each start."""
    replace = "cp /etc/hosts /etc/hosts.new; echo 192.0.2.1 mark >>/etc/hosts.new"
    done = cluster.ssh("node2", f"{replace}; mv /etc/hosts.new /etc/hosts", user="root")
    assert done.returncode == 0, done.stderr
    cluster.kill("node2")
    cluster.start("node2")
    hosts = cluster.ssh("node2", "cat /etc/hosts; sed -i /mark/d /etc/hosts", user="root").stdout
    assert "192.0.2.1 mark" in hosts
    assert hosts.count("node2") == 1


def test_cpuset_restricts_cpus_of_node(cluster: TestCluster) -> None:
    cpusets = dict(zip(cluster.nodes, CPUSETS.split(","), strict=False))
    assert any(cpusets.values())
    for node, cpuset in cpusets.items():
        if cpuset:
            allowed = cluster.ssh(node, "grep Cpus_allowed_list /proc/self/status").stdout.split()
            assert allowed[1] == cpuset


def test_ansible_reaches_all_nodes_of_inventory(cluster: TestCluster) -> None:
    argv = ["ansible", "-i", str(cluster.inventory), "all", "-m", "ansible.builtin.ping", "-o"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line.split()[0] for line in done.stdout.splitlines() if "pong" in line) == list(cluster.nodes)
