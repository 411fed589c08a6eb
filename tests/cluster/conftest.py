"""Start two clusters of three Docker nodes each, and break their nodes and network.

One cluster is provisioned again and again, the other one trains.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import run_processes
from tests.cluster.sites import ROOT, Site

CHECKOUT = Path(__file__).parents[2]
# CPU weight of the control group of all containers, 4 times the default, in version 1 and version 2 of control groups.
CPU_WEIGHTS = {Path("/sys/fs/cgroup/cpu/docker/cpu.shares"): 4096, Path("/sys/fs/cgroup/docker/cpu.weight"): 400}
# By default node2 is pinned to core 0.
CPUSETS = os.environ.get("ORCH_NODE_CPUSETS") or ",,0"
SETTINGS = {"VAGRANT_DEFAULT_PROVIDER": "docker", "ORCH_NODE_CPUSETS": CPUSETS}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of each cluster into one xdist group."""
    for item in items:
        if item.get_closest_marker("cluster"):
            runs = item.path.name.startswith("test_run_")
            item.add_marker(pytest.mark.xdist_group("cluster runs" if runs else "cluster"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TestCluster:
    """A cluster that test-cluster/up has started, accessed through docker and ssh."""

    __test__ = False

    number: int
    nodes: tuple[str, ...] = ("node0", "node1", "node2")

    @property
    def inventory(self) -> Path:
        """Return the inventory of the first cluster; the other clusters have none in the checkout."""
        return CHECKOUT / "inventory/vagrant"

    @property
    def state(self) -> Path:
        return CHECKOUT / "test-cluster" / (".state" if self.number == 1 else f".state-{self.number}")

    def container(self, node: str) -> str:
        return f"orch{'' if self.number == 1 else self.number}-{node}"

    @property
    def ssh_config(self) -> Path:
        return self.state / "ssh_config"

    def up(self, *, nodes: int = 3) -> None:
        """Start missing nodes, and remove nodes beyond the first `nodes`."""
        self.run_script("up", nodes=nodes)

    def down(self) -> None:
        """Remove the nodes, but leave the container engine running for other tests."""
        self.run_script("down", "nodes", nodes=len(self.nodes))

    def run_script(self, script: str, *arguments: str, nodes: int) -> None:
        """Run test-cluster/up or test-cluster/down; fail the test, never skip it, if that fails."""
        settings = {"NODES": str(nodes), "ORCH_CLUSTER": str(self.number)}
        done = subprocess.run(
            [str(CHECKOUT / "test-cluster" / script), *arguments],
            env={**os.environ, **settings, **SETTINGS},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if done.returncode != 0:
            pytest.fail(f"test-cluster/{script} failed ({done.returncode}):\n{done.stdout}{done.stderr}")

    def renew(self, *nodes: str) -> None:
        """Replace these nodes with bare ones that have new host keys."""
        removed = list(map(self.container, nodes))
        docker("rm", "--force", *removed)
        names = [f"--filter=name=^/?{container}$" for container in removed]
        deadline = time.monotonic() + 60
        # Vagrant fails if a container that it has listed disappears.
        while docker("ps", "--all", "--quiet", *names):
            assert time.monotonic() < deadline, f"docker still lists one of {removed}"
            time.sleep(0.1)
        self.up()

    def address(self, node: str) -> str:
        return f"192.168.{60 + self.number}.{10 + int(node.removeprefix('node'))}"

    def ssh(
        self, node: str, *argv: str, user: str = "vagrant", timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command on a node over ssh, and verify its host key."""
        options = ["-F", str(self.ssh_config), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
        command = ["ssh", *options, "-l", user, node, *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)

    def exec(self, node: str, argv: tuple[str, ...], user: str = "root") -> str:
        """Run a command on a node without its network, so that it works on a disconnected node."""
        return docker("exec", "--user", user, self.container(node), *argv)

    def copy_stacks(self, source: str, target: str) -> None:
        """Copy the stacks of a node to another one, with the times by which orch recognizes unchanged files."""
        user = ("--user", "vagrant")
        create = ("tar", "--create", "--format=posix", "--directory", ROOT, "stacks")
        extract = ("sh", "-c", 'mkdir -p "$1" && exec tar --extract --directory "$1"', "sh", ROOT)
        with subprocess.Popen(
            ["docker", "exec", *user, self.container(source), *create], stdout=subprocess.PIPE
        ) as process:
            command = ["docker", "exec", "--interactive", *user, self.container(target), *extract]
            subprocess.run(command, stdin=process.stdout, check=True)
        assert process.returncode == 0

    def cut(self, node: str) -> None:
        """Disconnect a node from the network, so that packets in both directions are lost."""
        self._link(node, "down")

    def heal(self, node: str) -> None:
        """Reconnect a node if it is running."""
        if self._state(node) == "running":
            self._link(node, "up")

    def mount(self, node: str, *arguments: str, program: str = "mount") -> None:
        """Run `mount` or `umount` on a node with privileges that its container does not have."""
        pid = docker("inspect", "--format", "{{.State.Pid}}", self.container(node)).strip()
        subprocess.run(["nsenter", "--target", pid, "--mount", "--pid", program, *arguments], check=True)

    def pause(self, node: str) -> None:
        """Freeze all processes of a node; its kernel still accepts connections."""
        docker("pause", self.container(node))

    def unpause(self, node: str) -> None:
        if self._state(node) == "paused":
            docker("unpause", self.container(node))

    def kill(self, node: str) -> None:
        """Switch a node off without a shutdown."""
        docker("kill", self.container(node))

    def start(self, node: str) -> None:
        """Switch a node on, and wait until it is reachable."""
        docker("start", self.container(node))
        self._wait_for_ssh(node)

    def processes(self, node: str) -> tuple[str, ...]:
        """Return the command lines of a node's processes, except init, sshd and ssh sessions."""
        lines = docker("top", self.container(node), "-eo", "pid,args").splitlines()[1:]
        commands = (line.split(maxsplit=1)[1] for line in lines)
        boot = ("/sbin/docker-init", "sshd: ")
        return tuple(command for command in commands if not command.startswith(boot))

    def repair(self) -> None:
        """Unfreeze, reconnect and start all nodes."""
        for node in self.nodes:
            self.unpause(node)
            self.heal(node)
            if self._state(node) != "running":
                self.start(node)

    def _state(self, node: str) -> str:
        return docker("inspect", "--format", "{{.State.Status}}", self.container(node)).strip()

    def _link(self, node: str, state: str) -> None:
        """Set this machine's end of the node's virtual cable up or down."""
        index = self.exec(node, ("cat", "/sys/class/net/eth0/iflink"))
        interface = socket.if_indextoname(int(index))
        subprocess.run(["ip", "link", "set", interface, state], check=True)

    def _wait_for_ssh(self, node: str) -> None:
        for _ in range(30):
            if self.ssh(node, "true").returncode == 0:
                return
        pytest.fail(f"{node} was started but is unreachable: {self.ssh(node, 'true').stderr}")


def docker(*argv: str) -> str:
    """Run docker, and return its output.

    Raises:
        RuntimeError: if docker fails; it has docker's error output.
    """
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"docker {' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def raise_cpu_weight() -> None:
    """Give the containers more CPU time, if the control group is writable.

    By default all nodes together get as much as one process of this machine, which makes them several times slower
    while other tests run.
    """
    for file, weight in CPU_WEIGHTS.items():
        if os.access(file, os.W_OK):
            file.write_text(str(weight))


def is_cluster_kept() -> bool:
    """Return whether clusters stay up after the tests, and are reused by the next ones."""
    return os.environ.get("ORCH_KEEP_CLUSTER") == "1"


def running_cluster(number: int) -> Iterator[TestCluster]:
    """Yield a cluster; its nodes are bare and are removed afterwards, unless it is kept."""
    cluster = TestCluster(number=number)
    if not is_cluster_kept():
        cluster.down()
    cluster.up()
    raise_cpu_weight()
    yield cluster
    if not is_cluster_kept():
        cluster.down()


@pytest.fixture(scope="session")
def cluster_session() -> Iterator[TestCluster]:
    yield from running_cluster(1)


@pytest.fixture(scope="session")
def lab_cluster() -> Iterator[TestCluster]:
    yield from running_cluster(2)


@pytest.fixture
def cluster(cluster_session: TestCluster) -> Iterator[TestCluster]:
    """Yield the cluster for provisioning with three reachable nodes, and repair it after each test."""
    yield cluster_session
    cluster_session.repair()


@pytest.fixture(scope="session")
def first_provision(
    cluster_session: TestCluster, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Site, dict[str, Any]]:
    """Provision two bare nodes, and return the site and the report of `orch provision`."""
    if is_cluster_kept():
        cluster_session.renew("node0", "node1", "node2")
    site = Site(cluster=cluster_session, folder=tmp_path_factory.mktemp("controller"))
    site.write_inventory("node0", "node1")
    return site, site.orch()


@pytest.fixture
def site(first_provision: tuple[Site, dict[str, Any]], cluster: TestCluster) -> Site:
    """Return the site of two provisioned nodes, as the tests before this one have left it."""
    return first_provision[0]


@pytest.fixture(scope="session")
def lab_session(lab_cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Provision three nodes with the same cores for test_run_*, and return their site.

    Only node0 installs the stack, which takes all cores for more than a minute; the others get a copy of its files.
    """
    lab_cluster.repair()
    cores = f"0-{(os.cpu_count() or 1) - 1}"
    docker("update", "--cpuset-cpus", cores, lab_cluster.container("node2"))
    lab = Site(cluster=lab_cluster, folder=tmp_path_factory.mktemp("lab"))
    lab.write_inventory("node0")
    lab.orch()
    for node in lab_cluster.nodes[1:]:
        if "stacks" not in lab_cluster.exec(node, ("sh", "-c", f"ls {ROOT} || true")):
            lab_cluster.copy_stacks("node0", node)
    lab.write_inventory(*lab_cluster.nodes)
    lab.orch()
    return lab


@pytest.fixture
def lab(lab_session: Site) -> Iterator[Site]:
    """Yield the site for training; repair its nodes and kill leftovers after each test."""
    yield lab_session
    lab_session.cluster.repair()
    for run in (lab_session.folder / "runs").glob("*/"):
        for pid in run_processes(run.name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
