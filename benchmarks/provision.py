"""Measure provisioning on the test cluster: `python benchmarks/provision.py`.

For each number of nodes (--nodes 1 2 4), always from bare nodes:
  orch, very first        `orch provision` without a wheelhouse: build the bindings and download all
                          wheels, once for all nodes (not with --only-orch)
  orch, first             with the wheelhouse, like the following cases
  orch, second            the same again
  orch, from the index    the same roles, but every node downloads from an index: --wheels index
  ssh in a loop           the manual steps: one node after another, copy wheels with scp, install with pip
The index is --index URL, or the wheelhouse itself, served on the bridge to the nodes (test-cluster/index). For each
case it prints seconds, the ratio to `orch, first` with the same number of nodes, the ratio to one node, and the cost of
each further node; then the same for the processor time of the controller and all nodes, which other work on the machine
does not increase.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]
STATE = CHECKOUT / "test-cluster/.state"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orch/wheelhouses"
PACKAGES = "openssh-client libhwloc15 libtcmalloc-minimal4 python3-venv"
PREPARE = (
    "sudo apt-get update -qq && sudo DEBIAN_FRONTEND=noninteractive apt-get install -qqy "
    f"--no-install-recommends {PACKAGES} && python3 -m venv manual"
)
FIRST = "orch, first"
VERY_FIRST = "orch, very first"
CGROUPS = Path("/sys/fs/cgroup")
# For every new file, ext4 checks all inodes that were deleted in the last minute, or in the last six if their block is
# not on the disk (fs/ext4/ialloc.c, recently_deleted). After nodes were removed, that is a third of the time of an
# installation, so the benchmark keeps the files of removed nodes.
DELETED_SECONDS = 365
REQUIRED_SPACE = 20 << 30  # bytes, enough for four nodes


class Cost(NamedTuple):
    """Elapsed seconds, and seconds of processor time."""

    clock: float
    cpu: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--index", help="URL of an index that the nodes reach")
    parser.add_argument("--only-orch", action="store_true", help="leave out the other cases")
    options = parser.parse_args()
    make_wheelhouse()
    table: dict[int, dict[str, Cost]] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: shutil.rmtree(kept_files(), ignore_errors=True))
        index = options.index or stack.enter_context(served())
        for count in options.nodes:
            table[count] = row = measure(count, index, only_orch=options.only_orch)
            for case in row:
                single = table[1][case] if count > 1 and 1 in table else None
                columns = zip(row[case], row[FIRST], single or (None, None), strict=True)
                text = "  | cpu".join(column(count, *values) for values in columns)
                print(f"{count} nodes  {case:<22} {text}", flush=True)
    return 0


def column(count: int, seconds: float, first: float, single: float | None) -> str:
    text = f"{seconds:7.1f} s {seconds / first:5.2f} x orch"
    if single:
        text += f" {seconds / single:5.2f} x one node {(seconds - single) / (count - 1):+6.1f} s a node"
    return text


def measure(count: int, index: str, *, only_orch: bool) -> dict[str, Cost]:
    first, second = by_orch(count, runs=2)
    row = {FIRST: first, "orch, second": second}
    if not only_orch:
        row[VERY_FIRST] = without_wheelhouse(count)
        (row["orch, from the index"],) = by_orch(count, "--wheels", "index", index=index)
        row["ssh in a loop"] = by_hand(count)
    return row


def make_wheelhouse() -> None:
    """Make the wheelhouse that all cases but the very first one use."""
    if not any(CACHE.glob("current-*/lock.json")):
        by_orch(1)


def newest_wheelhouse() -> Path:
    locks = CACHE.glob("current-*/lock.json")
    return max(locks, key=lambda path: path.stat().st_mtime).parent


@contextlib.contextmanager
def served() -> Iterator[str]:
    start_bare_nodes(1)  # the bridge must exist
    command = [sys.executable, str(CHECKOUT / "test-cluster/index"), str(newest_wheelhouse())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def start_bare_nodes(count: int) -> None:
    """Start new nodes; the daemon and the image stay."""
    environment = {**os.environ, "NODES": str(max(count, 2)), "VAGRANT_DEFAULT_PROVIDER": "docker"}
    if (STATE / "nodes").is_dir():
        nodes = [f"orch-{path.name}" for path in (STATE / "nodes").iterdir()]
        for node in nodes:
            keep_files(node)
        subprocess.run(["docker", "rm", "--force", *nodes], capture_output=True)
    subprocess.run([CHECKOUT / "test-cluster/up"], env=environment, check=True, capture_output=True)


def keep_files(node: str) -> None:
    """Move the files of a node out of docker's reach; if there is no space for them, wait."""
    subprocess.run(["docker", "kill", node], capture_output=True)
    written = docker_output("inspect", "--format", "{{.GraphDriver.Data.UpperDir}}", node)
    if not written:
        return
    aside = kept_files()
    aside.mkdir(mode=0o700, exist_ok=True)
    Path(written).rename(aside / Path(written).parent.name)
    if shutil.disk_usage(aside).free < REQUIRED_SPACE:
        shutil.rmtree(aside)
        time.sleep(DELETED_SECONDS)


def kept_files() -> Path:
    return Path(docker_output("info", "--format", "{{.DockerRootDir}}")) / "orch-benchmark"


def docker_output(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True).stdout.strip()


def without_wheelhouse(count: int) -> Cost:
    """Provision with an empty cache, also of pip; folders of wheels in pip's configuration are still used."""
    with tempfile.TemporaryDirectory() as cache:
        (cost,) = by_orch(count, cache=cache)
    return cost


def by_orch(count: int, *flags: str, index: str = "", cache: str = "", runs: int = 1) -> list[Cost]:
    start_bare_nodes(count)
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "XDG_STATE_HOME": state}
        if cache:
            environment["XDG_CACHE_HOME"] = cache
        inventory = write_inventory(Path(state), count, index)
        command = [sys.executable, "-m", "orchestrator.cli.main", "provision", str(inventory)]
        return [timed(lambda: orch([*command, *flags], environment)) for _ in range(runs)]


def orch(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if log := os.environ.get("ORCH_BENCH_LOG"):  # the times of all tasks
        with Path(log).open("a") as file:
            print(*command, done.stderr, done.stdout, sep="\n", file=file)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)


def timed(work: Callable[[], object]) -> Cost:
    began, used = time.monotonic(), processor()
    work()
    return Cost(time.monotonic() - began, processor() - used)


def processor() -> float:
    """Return the seconds of processor time of this process's children and of the nodes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime + node_seconds()


def node_seconds() -> float:
    """Return the processor time of the nodes' containers, from cgroups of version 1 or 2."""
    command = ["docker", "ps", "-q", "--no-trunc", "--filter", f"label=orch.checkout={CHECKOUT}"]
    total = 0.0
    for name in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split():
        first = CGROUPS / f"cpuacct/docker/{name}/cpuacct.usage"
        if first.exists():
            total += int(first.read_text()) / 1e9
            continue
        fields = (CGROUPS / f"system.slice/docker-{name}.scope/cpu.stat").read_text().split()
        total += int(fields[fields.index("usage_usec") + 1]) / 1e6
    return total


def write_inventory(folder: Path, count: int, index: str) -> Path:
    """Write an inventory (JSON is valid YAML) with the connection settings of inventory/vagrant."""
    arguments = f"-o UserKnownHostsFile={STATE}/known_hosts -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes"
    variables = {
        "ansible_user": "vagrant",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_private_key_file": str(STATE / "id_ed25519"),
        "ansible_ssh_common_args": arguments,
        "stack_index_url": index,
    }
    hosts = {f"node{i}": {"ansible_host": f"192.168.61.{10 + i}"} for i in range(count)}
    path = folder / "hosts.yml"
    path.write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))
    return path


def by_hand(count: int) -> Cost:
    """Set up one node after another, like a shell loop over the manual steps."""
    start_bare_nodes(count)
    wheelhouse = newest_wheelhouse()
    lock = json.loads((wheelhouse / "lock.json").read_text())
    files = " ".join(f"wheels/{wheel['file']}" for wheel in lock if wheel["name"] != "uv")
    copy = ["scp", "-q", "-F", str(STATE / "ssh_config"), "-r", str(wheelhouse)]

    def steps() -> None:
        for number in range(count):
            ssh(f"node{number}", PREPARE)
            subprocess.run([*copy, f"node{number}:wheels"], check=True)
            ssh(f"node{number}", f"manual/bin/pip install -q --no-index --no-deps {files}")

    return timed(steps)


def ssh(node: str, text: str) -> None:
    command = ["ssh", "-F", str(STATE / "ssh_config"), node, text]
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    raise SystemExit(main())
