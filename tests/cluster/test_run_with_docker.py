"""Run ranks in containers on two nodes, each with a Docker that an administrator has installed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import docker
from tests.cluster.lab import run_orch_json, start_training, wait_for_no_processes
from tests.cluster.sites import STACK, TOKEN, Site, run_on
from tests.support import images

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
groupadd --force docker
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


def install_docker(container: str) -> None:
    pid = docker("inspect", "--format", "{{.State.Pid}}", container).strip()
    namespaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
    subprocess.run(["nsenter", "--target", pid, *namespaces, "sh", "-c", INSTALL_DOCKER], check=True, timeout=300)


# Prints the sum of both ranks and its environment, reports progress, then waits.
SCRIPT = """
import json, os, time
import torch
import torch.distributed as dist
from orch_node import report
dist.init_process_group()
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print("SUM", total.item(), json.dumps(dict(os.environ)), flush=True)
dist.barrier()
report("progress", phase="train", step=1)
time.sleep(300)
"""


def containers_by_node(site: Site) -> dict[str, str]:
    """Return the ids of containers, running or not, for each node that has some."""
    ids = {node: run_on(site, node, "docker", "ps", "--all", "--quiet").strip() for node in NODES}
    return {node: text for node, text in ids.items() if text}


@pytest.fixture
def site_with_docker(site: Site, tmp_path: Path) -> Iterator[Site]:
    """Install Docker, provision, and yield the site of two nodes that have the image.

    node1 gets a copy of the programs, because to unpack the package takes 10 CPU seconds. Afterwards Docker is stopped;
    the programs stay installed.
    """
    docker("save", "--output", str(tmp_path / "bare.tar"), images.BARE_IMAGE)
    site.write_inventory(*NODES, orch_docker={"load": str(tmp_path / "bare.tar")})
    install_docker(site.cluster.container("node0"))
    programs, target = (site.cluster.file_system(node) for node in NODES)
    subprocess.run(["cp", "--archive", "--no-clobber", f"{programs}/usr", target], check=True)
    install_docker(site.cluster.container("node1"))
    for node in site.orch()["nodes"]:
        assert "load the image" in str(node["changes"])
    yield site
    for name in NODES:
        docker("exec", site.cluster.container(name), "pkill", "dockerd")


def test_ranks_in_containers_of_two_nodes_train_and_stop_leaves_no_container(site_with_docker: Site) -> None:
    site = site_with_docker
    script = site.folder / "wait.py"
    script.write_text(SCRIPT)
    run = start_training(site, str(script), *CONTAINER_OPTIONS, "--backend", "ccl")
    run.wait_for_event("progress", phase="train")
    assert set(containers_by_node(site)) == set(NODES)
    assert TOKEN not in run_on(site, "node1", "sh", "-c", 'docker inspect "$(docker ps --quiet)"')
    run_orch_json(site, "stop", run.id, "--inventory", str(site.inventory))
    run.wait_for_report(code=130)
    wait_for_no_processes(run.id, 5)
    assert containers_by_node(site) == {}
    for log in ((run.folder / f"ranks/rank-{rank}.log").read_text() for rank in (0, 1)):
        (line,) = (line for line in log.splitlines() if line.startswith("SUM "))
        environment = json.loads(line.removeprefix("SUM 3.0 "))
        assert (environment["LAB"], environment["HF_TOKEN"], environment["HOME"]) == ("one", TOKEN, "/tmp")
