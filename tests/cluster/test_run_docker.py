"""Run ranks in containers on two nodes, each with a Docker that an administrator has installed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import docker
from tests.cluster.lab import run_orch_json, start_training, wait_for_no_processes
from tests.cluster.sites import STACK, TOKEN, Site, nodes_by_name, run_on
from tests.support import images, matrix

pytestmark = pytest.mark.cluster
NODES = ("node0", "node1")
# The image has only Python, so the stack of the nodes is mounted.
CONTAINER_OPTIONS = (
    *("--nodes", "2", "--ppn", "1", "--launcher", "torchrun", "--image", images.BARE_IMAGE),
    *("--image-option", f"python={STACK}/bin/python"),
    *("--image-option", f"mounts={STACK}:{STACK}:ro"),
    *("--image-option", "memlock=inherit"),
)
# What the page "Run in containers" asks an administrator for. The nodes have no service manager, so the test starts the
# daemon. Docker needs a tmpfs here because the overlay file system of a container cannot hold another overlay.
INSTALL_DOCKER = """
export DEBIAN_FRONTEND=noninteractive
command -v dockerd >/dev/null || apt-get install --yes --quiet --no-install-recommends docker.io >/dev/null
usermod --append --groups docker vagrant
unset DOCKER_HOST
mkdir -p /var/lib/docker
mount -t tmpfs tmpfs /var/lib/docker
for group in /sys/fs/cgroup /sys/fs/cgroup/*; do mount -o remount,bind,rw "$group" 2>/dev/null; done
rm -f /var/run/docker.pid
setsid dockerd --bridge=none --iptables=false --ip6tables=false \\
    >/var/log/dockerd.log 2>&1 </dev/null &
for try in $(seq 100); do docker version >/dev/null 2>&1 && exit; sleep 0.3; done
tail -n 3 /var/log/dockerd.log >&2
exit 1
"""


def install_docker(container: str) -> subprocess.Popen[str]:
    pid = docker("inspect", "--format", "{{.State.Pid}}", container).strip()
    namespaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
    command = ["nsenter", "--target", pid, *namespaces, "sh", "-c", INSTALL_DOCKER]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def docker_reports(lab_session: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """Provision twice, install Docker in between, and yield what both reports say about the nodes.

    Afterwards Docker is stopped; its package stays installed.
    """
    file = tmp_path_factory.mktemp("image") / "bare.tar"
    docker("save", "--output", str(file), images.BARE_IMAGE)
    lab_session.write_inventory(*NODES, orch_docker={"load": str(file)})
    first = lab_session.orch(code=1)
    installations = [install_docker(lab_session.cluster.container(node)) for node in NODES]
    for process in installations:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    second = lab_session.orch()
    yield {
        "first": {name: node["problem"] for name, node in nodes_by_name(first).items()},
        "second": {name: str(node["changes"]) for name, node in nodes_by_name(second).items()},
    }
    for node in NODES:
        docker("exec", lab_session.cluster.container(node), "pkill", "dockerd")
    lab_session.write_inventory("node0", "node1", "node2")


def containers_by_node(site: Site) -> dict[str, str]:
    """Return the ids of containers, running or not, for each node that has some."""
    ids = {node: run_on(site, node, "docker", "ps", "--all", "--quiet").strip() for node in NODES}
    return {node: text for node, text in ids.items() if text}


def test_provision_loads_the_image_or_says_what_an_administrator_must_do(
    docker_reports: dict[str, dict[str, str]],
) -> None:
    for node in NODES:
        assert "usermod --append --groups docker vagrant" in docker_reports["first"][node]
        assert "load the image" in docker_reports["second"][node]


def test_ranks_in_containers_train_and_failure_names_rank_and_node(
    docker_reports: dict[str, dict[str, str]], lab_session: Site
) -> None:
    report = lab_session.train(
        str(matrix.SCRIPT), *CONTAINER_OPTIONS, "--backend", "ccl", "--", "--by-hand", "--fail", "1", code=1
    )
    assert (report["failure"]["rank"], report["failure"]["node"]) == (1, "node1")
    assert report["failure"]["text"].endswith("ValueError: boom of this script")
    run = lab_session.folder / "runs" / report["run_id"]
    log = (run / "ranks" / "rank-0.log").read_text()
    (line,) = (line for line in log.splitlines() if line.startswith("LOSSES "))
    assert json.loads(line[7:]) == pytest.approx(matrix.single_process_curve(), rel=matrix.TOLERANCE)
    (line,) = (line for line in log.splitlines() if line.startswith("ENVIRONMENT "))
    environment = json.loads(line[12:])
    assert (environment["LAB"], environment["HF_TOKEN"], environment["HOME"]) == ("one", TOKEN, "/tmp")
    assert containers_by_node(lab_session) == {}


WAITING_SCRIPT = """
import time
import torch.distributed as dist
dist.init_process_group()
dist.barrier()
print("waiting", flush=True)
time.sleep(300)
"""


def test_stop_leaves_no_container_on_any_node(docker_reports: dict[str, dict[str, str]], lab: Site) -> None:
    script = lab.folder / "wait.py"
    script.write_text(WAITING_SCRIPT)
    run = start_training(lab, str(script), *CONTAINER_OPTIONS, "--backend", "gloo")
    run.wait_for_event("joined", 2)
    assert set(containers_by_node(lab)) == set(NODES)
    assert TOKEN not in run_on(lab, "node1", "sh", "-c", 'docker inspect "$(docker ps --quiet)"')
    run_orch_json(lab, "stop", run.id, "--inventory", str(lab.inventory))
    run.wait_for_report(code=130)
    wait_for_no_processes(run.id, 5)
    assert containers_by_node(lab) == {}
