"""Run ranks in containers on two nodes, each with a Docker that an administrator has installed."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import docker
from tests.cluster.lab import run_orch_json, start_training, wait_for_no_processes
from tests.cluster.sites import STACK, TOKEN, Site, run_on

pytestmark = pytest.mark.cluster
NODES = ("node0", "node1")
# The image has only links into /usr, so that it is small. /usr and the stack of the nodes are mounted.
IMAGE = "orch-test:links"
CONTAINER_OPTIONS = (
    *("--nodes", "2", "--ppn", "1", "--launcher", "torchrun", "--image", IMAGE),
    *("--image-option", f"python={STACK}/bin/python"),
    *("--image-option", f"mounts={STACK}:{STACK}:ro", "--image-option", "mounts=/usr:/usr:ro"),
    *("--image-option", "memlock=inherit"),
)
# Prints the paths of the programs and libraries. To unpack the packages takes 10 CPU seconds.
INSTALL_DOCKER = """
set -e
DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends docker.io >/dev/null
dpkg --listfiles containerd docker.io libdevmapper1.02.1 runc | sed -nE 's,^/(.*(/s?bin/|[.]so).*),\\1,p'
"""
# What the page "Run in containers" asks an administrator for. The nodes have no service manager, so the test starts the
# daemon. Docker needs a tmpfs here because the overlay file system of a container cannot hold another overlay.
START_DOCKER = """
getent group docker >/dev/null || groupadd --system docker
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


def run_as_root(pid: str, script: str) -> str:
    """Run a shell script with all rights of root in a node, which has this process, and return its output."""
    namespaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
    command = ["nsenter", "--target", pid, *namespaces, "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


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


def write_image(folder: Path) -> None:
    """Write an image to the file image.tar of a folder, as `docker save` does."""
    with tarfile.open(folder / "root.tar", "w") as archive:
        folder_entry = tarfile.TarInfo("tmp")
        folder_entry.type, folder_entry.mode = tarfile.DIRTYPE, 0o1777
        archive.addfile(folder_entry)
        for name in ("bin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(link)
    docker("import", str(folder / "root.tar"), IMAGE)
    docker("save", "--output", str(folder / "image.tar"), IMAGE)


@pytest.fixture
def site_with_docker(site: Site, tmp_path: Path) -> Iterator[Site]:
    """Install Docker, provision, and yield the site of two nodes that have the image.

    Afterwards Docker is stopped; its package stays installed.
    """
    write_image(tmp_path)
    site.write_inventory(*NODES, orch_docker={"load": str(tmp_path / "image.tar")})
    pids = [docker("inspect", "--format", "{{.State.Pid}}", site.cluster.container(node)).strip() for node in NODES]
    roots = [Path(f"/proc/{pid}/root") for pid in pids]
    files = run_as_root(pids[0], INSTALL_DOCKER).split()
    subprocess.run(["cp", "--archive", "--parents", *files, roots[1]], cwd=roots[0], check=True)
    for pid in pids:
        run_as_root(pid, START_DOCKER)
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
