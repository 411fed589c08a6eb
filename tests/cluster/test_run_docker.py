"""Ranks in containers on two nodes, each with an engine that `orch provision` has installed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import docker
from tests.cluster.lab import ask, await_nothing_left, start
from tests.cluster.sites import SITE, TOKEN, Site, nodes_of, on
from tests.support import images, matrix

pytestmark = pytest.mark.cluster
NODES = ("node0", "node1")
STACK = SITE.partition("/lib/")[0]
# The image has Python alone: it is lent the stack of the nodes.
IN_IMAGE = (
    "--nodes",
    "2",
    "--ppn",
    "1",
    "--docker-image",
    images.BARE,
    "--docker",
    f"python={STACK}/bin/python",
    "--docker",
    f"mounts={STACK}:{STACK}:ro",
    "--docker",
    "memlock=inherit",
    "--launcher",
    "torchrun",
)
# No service manager runs on these nodes, so the test is their administrator. A disk of its own,
# because there is no overlay over the one that a container has.
ENGINE = """
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


def start_engine(container: str) -> None:
    pid = docker("inspect", "--format", "{{.State.Pid}}", container).strip()
    spaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
    enter = ["nsenter", "--target", pid, *spaces, "sh", "-c", ENGINE]
    done = subprocess.run(enter, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def engines(lab_session: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """What two provisions say: one that finds no engine, and one after an administrator has
    started it. Afterwards the nodes are as they were, but for the package."""
    file = tmp_path_factory.mktemp("image") / "bare.tar"
    docker("save", "--output", str(file), images.BARE)
    lab_session.describe(*NODES, orch_docker={"load": str(file)})
    first = lab_session.orch(code=1)
    for node in NODES:
        start_engine(lab_session.cluster.container(node))
    second = lab_session.orch()
    yield {
        "first": {name: node["problem"] for name, node in nodes_of(first).items()},
        "second": {name: str(node["changes"]) for name, node in nodes_of(second).items()},
    }
    for node in NODES:
        docker("exec", lab_session.cluster.container(node), "pkill", "dockerd")
    lab_session.describe("node0", "node1", "node2")


def left(site: Site) -> dict[str, str]:
    words = ("docker", "ps", "--all", "--quiet")
    return {node: found for node in NODES if (found := on(site, node, *words).strip())}


def test_an_engine_is_installed_and_what_is_missing_is_asked_of_an_administrator(
    engines: dict[str, dict[str, str]], lab_session: Site
) -> None:
    for node in NODES:
        assert "usermod --append --groups docker vagrant" in engines["first"][node]
        assert "load the image" in engines["second"][node]
    again = lab_session.orch("--check")
    assert not any(node["changes"] for node in again["nodes"])


def test_ranks_in_containers_of_two_nodes_train_and_a_failure_is_named(
    engines: dict[str, dict[str, str]], lab_session: Site
) -> None:
    report = lab_session.train(
        str(matrix.SCRIPT), *IN_IMAGE, "--backend", "ccl", "--fresh", "--", "--by-hand", "--fail", "1", code=1
    )
    assert (report["failure"]["rank"], report["failure"]["node"]) == (1, "node1")
    assert report["failure"]["text"].endswith("ValueError: boom of this script")
    run = lab_session.folder / "runs" / report["run_id"]
    log = (run / "ranks" / "rank-0.log").read_text()
    (line,) = (line for line in log.splitlines() if line.startswith("LOSSES "))
    assert json.loads(line[7:]) == pytest.approx(matrix.single_process_curve(), rel=matrix.TOLERANCE)
    (line,) = (line for line in log.splitlines() if line.startswith("ENVIRONMENT "))
    found = json.loads(line[12:])
    assert (found["LAB"], found["HF_TOKEN"], found["HOME"]) == ("one", TOKEN, "/tmp")
    assert left(lab_session) == {}


WAIT = """
import time
import torch.distributed as dist
dist.init_process_group()
dist.barrier()
print("waiting", flush=True)
time.sleep(300)
"""


def test_a_stop_leaves_no_container_on_any_node(engines: dict[str, dict[str, str]], lab: Site) -> None:
    script = lab.folder / "wait.py"
    script.write_text(WAIT)
    running = start(lab, str(script), *IN_IMAGE, "--backend", "gloo")
    running.await_event("joined", 2)
    assert set(left(lab)) == set(NODES)
    assert TOKEN not in on(lab, "node1", "sh", "-c", 'docker inspect "$(docker ps --quiet)"')
    ask(lab, "stop", running.id, "--inventory", str(lab.inventory))
    running.end(code=130)
    await_nothing_left(running.id, 5)
    assert left(lab) == {}
