"""Start three Docker nodes, provision them for all tests of this folder, and break them.

The tests run in the order of their files: those of the bare nodes, those that provision, those that train.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the cluster into one xdist group."""
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.xdist_group("cluster"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TestCluster:
    """A cluster that test-cluster/up has started, accessed through docker and ssh."""

    __test__ = False

    nodes: tuple[str, ...] = ("node0", "node1", "node2")

    @property
    def inventory(self) -> Path:
        return CHECKOUT / "inventory/vagrant"

    @property
    def state(self) -> Path:
        return CHECKOUT / "test-cluster/.state"

    def container(self, node: str) -> str:
        return f"orch-{node}"

    @property
    def ssh_config(self) -> Path:
        return self.state / "ssh_config"

    def up(self) -> None:
        """Start the nodes."""
        self.run_script("up")

    def down(self) -> None:
        """Remove the nodes, but leave the container engine running for other tests."""
        self.run_script("down", "nodes")

    def run_script(self, script: str, *arguments: str) -> None:
        """Run test-cluster/up or test-cluster/down; fail the test, never skip it, if that fails."""
        done = subprocess.run(
            [str(CHECKOUT / "test-cluster" / script), *arguments],
            env={**os.environ, "NODES": str(len(self.nodes)), "VAGRANT_DEFAULT_PROVIDER": "docker"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if done.returncode != 0:
            pytest.fail(f"test-cluster/{script} failed ({done.returncode}):\n{done.stdout}{done.stderr}")

    def address(self, node: str) -> str:
        return f"192.168.61.{10 + int(node.removeprefix('node'))}"

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
        self.exec(target, ("mkdir", "-p", ROOT), user="vagrant")
        folders = [f"{self.file_system(source)}{ROOT}/stacks", f"{self.file_system(target)}{ROOT}"]
        subprocess.run(["cp", "--archive", *folders], check=True)

    def file_system(self, node: str) -> str:
        """Return the path on this machine of the root folder of a node."""
        return f"/proc/{docker('inspect', '--format', '{{.State.Pid}}', self.container(node)).strip()}/root"

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
        """Unfreeze and start all nodes."""
        for node in self.nodes:
            self.unpause(node)
            if self._state(node) != "running":
                self.start(node)

    def _state(self, node: str) -> str:
        return docker("inspect", "--format", "{{.State.Status}}", self.container(node)).strip()

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


@pytest.fixture(scope="session")
def cluster_session() -> Iterator[TestCluster]:
    """Yield the cluster, whose nodes are bare."""
    cluster = TestCluster()
    cluster.down()
    cluster.up()
    raise_cpu_weight()
    yield cluster
    cluster.down()


@pytest.fixture(scope="session")
def first_provision(
    cluster_session: TestCluster, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Site, dict[str, Any]]:
    """Provision bare nodes, and return the site of three nodes and the report of the first provisioning.

    Only node0 installs the stack, which takes 100 CPU seconds; the other nodes get a copy of its files.
    """
    site = Site(cluster=cluster_session, folder=tmp_path_factory.mktemp("controller"))
    site.write_inventory("node0")
    report = site.orch()
    for node in cluster_session.nodes[1:]:
        cluster_session.copy_stacks("node0", node)
    site.write_inventory(*cluster_session.nodes)
    site.orch()
    return site, report


@pytest.fixture
def site(first_provision: tuple[Site, dict[str, Any]]) -> Iterator[Site]:
    """Yield the site of three provisioned nodes; repair them, and end all runs, after each test."""
    site, _ = first_provision
    yield site
    site.cluster.repair()
    site.write_inventory(*site.cluster.nodes)
    for run in (site.folder / "runs").glob("*/"):
        for pid in run_processes(run.name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
