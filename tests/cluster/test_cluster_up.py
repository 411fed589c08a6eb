"""The nodes are what the Vagrantfile promises: reachable, verified, bare, and mortal."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cluster.conftest import CPUSETS, TestCluster, keeps_cluster

pytestmark = pytest.mark.cluster


def test_every_node_answers_over_ssh_with_a_verified_host_key(cluster: TestCluster) -> None:
    for node in cluster.nodes:
        for user in ("vagrant", "root"):
            done = cluster.ssh(node, "hostname; id -un", user=user)
            assert done.stdout.split() == [node, user], done.stderr


def test_a_wrong_host_key_is_refused(cluster: TestCluster, tmp_path: Path) -> None:
    known = (cluster.state / "known_hosts").read_text()
    swapped = known.replace(cluster.address("node0"), "?").replace(cluster.address("node1"), cluster.address("node0"))
    (tmp_path / "known_hosts").write_text(swapped)
    argv = ["ssh", "-F", str(cluster.ssh_config), "-o", "BatchMode=yes"]
    argv += ["-o", f"UserKnownHostsFile={tmp_path / 'known_hosts'}", "node0", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_every_node_has_host_keys_of_its_own(cluster: TestCluster) -> None:
    keys = [line.split()[1:] for line in (cluster.state / "known_hosts").read_text().splitlines()]
    assert {kind for kind, _ in keys} >= {"ssh-ed25519", "ssh-rsa"}
    assert len({key for _, key in keys}) == len(keys) >= 2 * len(cluster.nodes)


def test_the_private_key_is_private(cluster: TestCluster) -> None:
    assert (cluster.state / "id_ed25519").stat().st_mode & 0o777 == 0o600
    assert cluster.state.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def bare(cluster: TestCluster) -> TestCluster:
    """The cluster as cluster/up made it: this file's tests come before those that provision."""
    if keeps_cluster():
        pytest.skip("ORCH_KEEP_CLUSTER: a kept cluster may have been provisioned")
    return cluster


def test_a_fresh_node_has_nothing_of_ours(bare: TestCluster) -> None:
    tools = "rsync pip uv mpiexec mpiexec.hydra numactl gcc orch"
    for node in bare.nodes:
        assert bare.ssh(node, f"for t in {tools}; do command -v $t; done").stdout == ""
        assert "ModuleNotFoundError" in bare.ssh(node, "python3 -c 'import torch'").stderr
        assert bare.ssh(node, "find /opt /srv /usr/local/lib -type f").stdout == ""
        assert bare.ssh(node, "ls ~/.ssh", user="root").stdout.split() == ["authorized_keys"]
        assert bare.ssh(node, "ls -A ~").stdout.split() == [*(".bash_logout", ".bashrc", ".profile", ".ssh")]


def test_bare_nodes_know_themselves_and_not_each_other(bare: TestCluster) -> None:
    for node in bare.nodes:
        own = bare.ssh(node, f"getent hosts {node}").stdout.split()
        assert own == [bare.address(node), node]
        for other in set(bare.nodes) - {node}:
            assert bare.ssh(node, f"getent hosts {other}").returncode == 2
            port = f"exec 3<>/dev/tcp/{bare.address(other)}/22"
            assert bare.ssh(node, f"bash -c '{port}'").returncode == 0


def test_a_renewed_node_is_another_machine(cluster: TestCluster) -> None:
    keys = (cluster.state / "known_hosts").read_text().splitlines()
    cluster.renew("node2")
    renewed = (cluster.state / "known_hosts").read_text().splitlines()
    changed = {line.split()[0] for line in set(keys) ^ set(renewed)}
    assert changed == {cluster.address("node2")}
    assert cluster.ssh("node2", "hostname").stdout.strip() == "node2"


def test_a_node_is_added_and_taken_away(cluster: TestCluster) -> None:
    before = (cluster.inventory / "more-nodes.yml").read_text()
    cluster.up(nodes=4)
    assert cluster.ssh("node3", "hostname").stdout.strip() == "node3"
    assert "node3" in (cluster.inventory / "more-nodes.yml").read_text()
    cluster.up()
    assert (cluster.inventory / "more-nodes.yml").read_text().splitlines()[1:] == (before.splitlines()[1:])
    assert cluster.address("node3") not in (cluster.state / "known_hosts").read_text()


def test_files_in_etc_can_be_replaced_and_stay(cluster: TestCluster) -> None:
    """As on a machine: what a role writes into /etc/hosts outlives a restart of the node."""
    replace = "cp /etc/hosts /etc/hosts.new; echo 192.0.2.1 mark >>/etc/hosts.new"
    done = cluster.ssh("node2", f"{replace}; mv /etc/hosts.new /etc/hosts", user="root")
    assert done.returncode == 0, done.stderr
    cluster.kill("node2")
    cluster.start("node2")
    hosts = cluster.ssh("node2", "cat /etc/hosts; sed -i /mark/d /etc/hosts", user="root").stdout
    # Docker mounts its own file again at each start; boot takes it away again.
    assert "192.0.2.1 mark" in hosts
    assert hosts.count("node2") == 1


def test_shared_memory_is_at_least_one_gibibyte(cluster: TestCluster) -> None:
    for node in cluster.nodes:
        size = cluster.ssh(node, "stat --file-system --format '%S %b' /dev/shm").stdout.split()
        assert int(size[0]) * int(size[1]) >= 1 << 30


def test_a_cpuset_pins_a_node(cluster: TestCluster) -> None:
    asked = dict(zip(cluster.nodes, CPUSETS.split(","), strict=False))
    assert any(asked.values())
    for node, cpuset in asked.items():
        if cpuset:
            allowed = cluster.ssh(node, "grep Cpus_allowed_list /proc/self/status").stdout.split()
            assert allowed[1] == cpuset


def test_ansible_reaches_all_nodes_by_the_inventory(cluster: TestCluster) -> None:
    argv = ["ansible", "-i", str(cluster.inventory), "all", "-m", "ansible.builtin.ping", "-o"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line.split()[0] for line in done.stdout.splitlines() if "pong" in line) == list(cluster.nodes)


def test_ansible_sees_the_same_nodes_in_the_same_order(cluster: TestCluster) -> None:
    argv = ["ansible-inventory", "-i", str(cluster.inventory), "--list"]
    listed = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    hosts = json.loads(listed.stdout)["_meta"]["hostvars"]
    assert tuple(hosts) == cluster.nodes
    for node in cluster.nodes:
        assert hosts[node]["ansible_host"] == cluster.address(node)


def test_cut_and_heal(cluster: TestCluster) -> None:
    cluster.cut("node1")
    assert cluster.ssh("node1", "true").returncode == 255
    assert cluster.exec("node1", ("hostname",)).strip() == "node1"
    cluster.heal("node1")
    assert cluster.ssh("node1", "hostname -I").stdout.split() == [cluster.address("node1")]


def test_pause_and_unpause(cluster: TestCluster) -> None:
    cluster.pause("node1")
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.ssh("node1", "true", timeout=3)
    cluster.unpause("node1")
    assert cluster.ssh("node1", "true").returncode == 0


def test_kill_and_start_keep_the_host_keys(cluster: TestCluster) -> None:
    cluster.kill("node1")
    assert cluster.ssh("node1", "true").returncode == 255
    cluster.start("node1")
    assert cluster.ssh("node1", "hostname").stdout.strip() == "node1"


def test_processes_lists_what_runs_on_a_node(cluster: TestCluster) -> None:
    assert cluster.processes("node0") == ()
    cluster.ssh("node0", "setsid sleep 987 >/dev/null 2>&1 </dev/null &")
    assert any("sleep 987" in command for command in cluster.processes("node0"))
    cluster.exec("node0", ("pkill", "-f", "sleep 987"))


def test_a_second_up_changes_nothing(cluster: TestCluster) -> None:
    files = ("known_hosts", "ssh_config", "id_ed25519")
    before = [(cluster.state / name).stat().st_mtime_ns for name in files]
    uptime = "stat --format %Y /proc/1"
    born = [cluster.ssh(node, uptime).stdout for node in cluster.nodes]
    cluster.up()
    assert [(cluster.state / name).stat().st_mtime_ns for name in files] == before
    assert [cluster.ssh(node, uptime).stdout for node in cluster.nodes] == born
