"""Two clusters of three bare docker nodes each, and ways to hurt them: one is provisioned over and
over again, the other has runs."""

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

from tests.cluster.lab import processes
from tests.cluster.sites import Site

CHECKOUT = Path(__file__).parents[2]
# Of the group of all containers, in either version of control groups: 4 times the default.
SHARES = {Path("/sys/fs/cgroup/cpu/docker/cpu.shares"): 4096, Path("/sys/fs/cgroup/docker/cpu.weight"): 400}
# One node with a core of its own, unless the environment says otherwise.
CPUSETS = os.environ.get("ORCH_NODE_CPUSETS") or ",,0"
SETTINGS = {"VAGRANT_DEFAULT_PROVIDER": "docker", "ORCH_NODE_CPUSETS": CPUSETS}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each cluster has a lane of its own."""
    for item in items:
        if item.get_closest_marker("cluster"):
            runs = item.path.name.startswith("test_run_")
            item.add_marker(pytest.mark.xdist_group("cluster runs" if runs else "cluster"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TestCluster:
    """The nodes of a cluster of cluster/up, as docker and as ssh see them."""

    __test__ = False

    number: int
    nodes: tuple[str, ...] = ("node0", "node1", "node2")

    @property
    def inventory(self) -> Path:
        """Of the first cluster; others have none in the checkout."""
        return CHECKOUT / "inventory/vagrant"

    @property
    def state(self) -> Path:
        return CHECKOUT / "cluster" / (".state" if self.number == 1 else f".state-{self.number}")

    def container(self, node: str) -> str:
        return f"orch{'' if self.number == 1 else self.number}-{node}"

    @property
    def ssh_config(self) -> Path:
        return self.state / "ssh_config"

    def up(self, *, nodes: int = 3) -> None:
        """Bring up what is missing, take away what is beyond `nodes`."""
        self.make("up", nodes=nodes)

    def down(self) -> None:
        self.make("down", "nodes", nodes=len(self.nodes))

    def make(self, script: str, *words: str, nodes: int) -> None:
        """Call cluster/up or cluster/down. Without a cluster the tests fail, they never skip.

        The engine stays: other lanes have containers of their own.
        """
        settings = {"NODES": str(nodes), "ORCH_CLUSTER": str(self.number)}
        done = subprocess.run(
            [str(CHECKOUT / "cluster" / script), *words],
            env={**os.environ, **settings, **SETTINGS},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if done.returncode != 0:
            said = done.stdout + done.stderr
            pytest.fail(f"cluster/{script} failed ({done.returncode}):\n{said}")

    def renew(self, *nodes: str) -> None:
        """Put bare machines with new host keys in the place of these nodes."""
        removed = list(map(self.container, nodes))
        docker("rm", "--force", *removed)
        names = [f"--filter=name=^/?{container}$" for container in removed]
        deadline = time.monotonic() + 60
        while docker("ps", "--all", "--quiet", *names):  # Vagrant would find it, and then not
            assert time.monotonic() < deadline, f"docker still lists one of {removed}"
            time.sleep(0.1)
        self.up()

    def address(self, node: str) -> str:
        return f"192.168.{60 + self.number}.{10 + int(node.removeprefix('node'))}"

    def ssh(
        self, node: str, *argv: str, user: str = "vagrant", timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command on a node over ssh, the host key verified."""
        options = ["-F", str(self.ssh_config), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]
        command = ["ssh", *options, "-l", user, node, *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)

    def exec(self, node: str, argv: tuple[str, ...], user: str = "root") -> str:
        """Run a command on a node past its network: works on a node that is cut off."""
        return docker("exec", "--user", user, self.container(node), *argv)

    def cut(self, node: str) -> None:
        """Take the node's network away: what it sends and what is sent to it is lost."""
        self._link(node, "down")

    def heal(self, node: str) -> None:
        if self._state(node) == "running":
            self._link(node, "up")

    def mount(self, node: str, *arguments: str, program: str = "mount") -> None:
        """(Un)mount something on a node, with this machine's rights: a container has not these."""
        pid = docker("inspect", "--format", "{{.State.Pid}}", self.container(node)).strip()
        subprocess.run(["nsenter", "--target", pid, "--mount", "--pid", program, *arguments], check=True)

    def pause(self, node: str) -> None:
        """Freeze all processes of the node. Its kernel goes on accepting connections."""
        docker("pause", self.container(node))

    def unpause(self, node: str) -> None:
        if self._state(node) == "paused":
            docker("unpause", self.container(node))

    def kill(self, node: str) -> None:
        """Switch the node off, without a goodbye."""
        docker("kill", self.container(node))

    def start(self, node: str) -> None:
        """Switch the node on; returns once it can be reached."""
        docker("start", self.container(node))
        self._wait_for_ssh(node)

    def processes(self, node: str) -> tuple[str, ...]:
        """The command lines of what runs on the node, but its init, its sshd and ssh sessions."""
        lines = docker("top", self.container(node), "-eo", "pid,args").splitlines()[1:]
        commands = (line.split(maxsplit=1)[1] for line in lines)
        boot = ("/sbin/docker-init", "sshd: ")
        return tuple(command for command in commands if not command.startswith(boot))

    def repair(self) -> None:
        """Undo whatever a test did to the nodes' life and links."""
        for node in self.nodes:
            self.unpause(node)
            self.heal(node)
            if self._state(node) != "running":
                self.start(node)

    def _state(self, node: str) -> str:
        return docker("inspect", "--format", "{{.State.Status}}", self.container(node)).strip()

    def _link(self, node: str, state: str) -> None:
        """Pull or plug the cable: the other end of the node's interface, which knows nothing."""
        index = self.exec(node, ("cat", "/sys/class/net/eth0/iflink"))
        name = socket.if_indextoname(int(index))
        subprocess.run(["ip", "link", "set", name, state], check=True)

    def _wait_for_ssh(self, node: str) -> None:
        for _ in range(30):
            if self.ssh(node, "true").returncode == 0:
                return
        pytest.fail(f"{node} was started and cannot be reached: {self.ssh(node, 'true').stderr}")


def docker(*argv: str) -> str:
    """Run docker; a failure is loud and shows what docker said."""
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"docker {' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def weigh_nodes() -> None:
    """All nodes together would weigh as much as one process of this machine, and be several times
    slower beside other tests. Where the groups are not ours they stay so: it costs time alone."""
    for file, weight in SHARES.items():
        if os.access(file, os.W_OK):
            file.write_text(str(weight))


def keeps_cluster() -> bool:
    return os.environ.get("ORCH_KEEP_CLUSTER") == "1"


def brought_up(number: int) -> Iterator[TestCluster]:
    cluster = TestCluster(number=number)
    if not keeps_cluster():
        cluster.down()  # whatever was left by an earlier run: tests start bare
    cluster.up()
    weigh_nodes()
    yield cluster
    if not keeps_cluster():
        cluster.down()


@pytest.fixture(scope="session")
def cluster_session() -> Iterator[TestCluster]:
    yield from brought_up(1)


@pytest.fixture(scope="session")
def lab_cluster() -> Iterator[TestCluster]:
    yield from brought_up(2)


@pytest.fixture
def cluster(cluster_session: TestCluster) -> Iterator[TestCluster]:
    """Three reachable nodes. What a test cuts, freezes or kills is recovery after it."""
    yield cluster_session
    cluster_session.repair()


@pytest.fixture(scope="session")
def first(cluster_session: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, dict[str, Any]]:
    """Two nodes, provisioned from bare; the tests build on one another, in their order."""
    if keeps_cluster():
        cluster_session.renew("node0", "node1", "node2")
    site = Site(cluster=cluster_session, folder=tmp_path_factory.mktemp("controller"))
    site.describe("node0", "node1")
    return site, site.orch()


@pytest.fixture
def site(first: tuple[Site, dict[str, Any]], cluster: TestCluster) -> Site:
    return first[0]


@pytest.fixture(scope="session")
def lab_session(lab_cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Three provisioned nodes with the same cores, and a controller of its own: for test_run_*."""
    lab_cluster.repair()
    cores = f"0-{(os.cpu_count() or 1) - 1}"
    docker("update", "--cpuset-cpus", cores, lab_cluster.container("node2"))
    lab = Site(cluster=lab_cluster, folder=tmp_path_factory.mktemp("lab"))
    lab.describe(*lab_cluster.nodes)
    lab.orch()
    return lab


@pytest.fixture
def lab(lab_session: Site) -> Iterator[Site]:
    """What a test that failed has left running does not stand in the way of the next one."""
    yield lab_session
    lab_session.cluster.repair()
    for run in (lab_session.folder / "runs").glob("*"):
        for pid in processes(run.name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
