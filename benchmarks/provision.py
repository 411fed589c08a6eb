"""How long provisioning takes on the test cluster: `python benchmarks/provision.py`.

For each number of nodes (--nodes 1 2 4), always from bare nodes:
  orch, very first        `orch provision` where nothing is at hand: the bindings are built, and all
                          wheels are fetched, once for all nodes (not with --only-orch)
  orch, first             with the wheelhouse at hand, as all that follows
  orch, second            the same again
  orch, from the index    the same roles, but every node fetches from an index: --wheels index
  ssh in a loop           the manual steps: node after node, wheels by scp, installed by pip
The index is --index URL, or else the wheelhouse itself, served on the bridge to the nodes
(cluster/index). Prints seconds, the ratio to `orch, first` of as many nodes, the ratio to one node
by the same way, and what each further node cost; behind them the same of the processor time of the
controller and all nodes, which other work on the machine does not lengthen.
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
STATE = CHECKOUT / "cluster/.state"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orch/wheelhouses"
PACKAGES = "openssh-client libhwloc15 libtcmalloc-minimal4 python3-venv"
PREPARE = (
    "sudo apt-get update -qq && sudo DEBIAN_FRONTEND=noninteractive apt-get install -qqy "
    f"--no-install-recommends {PACKAGES} && python3 -m venv manual"
)
FIRST = "orch, first"
VERY_FIRST = "orch, very first"
CGROUPS = Path("/sys/fs/cgroup")
# ext4 gives no inode out again that was deleted in the last minute, or six while its block is not
# on the disk, and looks at each for every new file (fs/ext4/ialloc.c, recently_deleted): a third of
# the time of an installation, where the nodes before have just been removed. So theirs are kept.
DELETED_SECONDS = 365
ROOM = 20 << 30  # bytes, of four nodes and more


class Cost(NamedTuple):
    """Seconds on the clock, and of the processors."""

    clock: float
    cpu: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--index", help="URL of an index that the nodes reach")
    parser.add_argument("--only-orch", action="store_true", help="leave the other ways out")
    options = parser.parse_args()
    make_wheelhouse()
    table: dict[int, dict[str, Cost]] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: shutil.rmtree(kept(), ignore_errors=True))
        index = options.index or stack.enter_context(served())
        for count in options.nodes:
            table[count] = row = measure(count, index, only_orch=options.only_orch)
            for way in row:
                one = table[1][way] if count > 1 and 1 in table else None
                columns = zip(row[way], row[FIRST], one or (None, None), strict=True)
                text = "  | cpu".join(column(count, *values) for values in columns)
                print(f"{count} nodes  {way:<22} {text}", flush=True)
    return 0


def column(count: int, seconds: float, first: float, one: float | None) -> str:
    text = f"{seconds:7.1f} s {seconds / first:5.2f} x orch"
    if one:
        text += f" {seconds / one:5.2f} x one node {(seconds - one) / (count - 1):+6.1f} s a node"
    return text


def measure(count: int, index: str, *, only_orch: bool) -> dict[str, Cost]:
    first, second = by_orch(count, runs=2)
    row = {FIRST: first, "orch, second": second}
    if not only_orch:
        row[VERY_FIRST] = with_nothing_at_hand(count)
        (row["orch, from the index"],) = by_orch(count, "--wheels", "index", index=index)
        row["ssh in a loop"] = by_hand(count)
    return row


def make_wheelhouse() -> None:
    """For all ways but the very first one."""
    if not any(CACHE.glob("current-*/lock.json")):
        by_orch(1)


def newest_wheelhouse() -> Path:
    locks = CACHE.glob("current-*/lock.json")
    return max(locks, key=lambda path: path.stat().st_mtime).parent


@contextlib.contextmanager
def served() -> Iterator[str]:
    bare(1)  # the bridge must be there
    command = [sys.executable, str(CHECKOUT / "cluster/index"), str(newest_wheelhouse())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def bare(count: int) -> None:
    """Nodes that nobody has touched; the daemon and the image stay."""
    environment = {**os.environ, "NODES": str(max(count, 2)), "VAGRANT_DEFAULT_PROVIDER": "docker"}
    if (STATE / "nodes").is_dir():
        nodes = [f"orch-{path.name}" for path in (STATE / "nodes").iterdir()]
        for node in nodes:
            keep_files(node)
        subprocess.run(["docker", "rm", "--force", *nodes], capture_output=True)
    subprocess.run([CHECKOUT / "cluster/up"], env=environment, check=True, capture_output=True)


def keep_files(node: str) -> None:
    """Move what a node has written out of docker's reach; without room for that, wait."""
    subprocess.run(["docker", "kill", node], capture_output=True)
    written = said_by_docker("inspect", "--format", "{{.GraphDriver.Data.UpperDir}}", node)
    if not written:
        return
    aside = kept()
    aside.mkdir(mode=0o700, exist_ok=True)
    Path(written).rename(aside / Path(written).parent.name)
    if shutil.disk_usage(aside).free < ROOM:
        shutil.rmtree(aside)
        time.sleep(DELETED_SECONDS)


def kept() -> Path:
    return Path(said_by_docker("info", "--format", "{{.DockerRootDir}}")) / "orch-benchmark"


def said_by_docker(*words: str) -> str:
    return subprocess.run(["docker", *words], capture_output=True, text=True).stdout.strip()


def with_nothing_at_hand(count: int) -> Cost:
    """pip's own cache is empty too; what its configuration finds on a disk stays there."""
    with tempfile.TemporaryDirectory() as cache:
        (cost,) = by_orch(count, cache=cache)
    return cost


def by_orch(count: int, *flags: str, index: str = "", cache: str = "", runs: int = 1) -> list[Cost]:
    bare(count)
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "XDG_STATE_HOME": state}
        if cache:
            environment["XDG_CACHE_HOME"] = cache
        inventory = write_inventory(Path(state), count, index)
        command = [sys.executable, "-m", "orchestrator.cli.main", "provision", str(inventory)]
        return [timed(lambda: orch([*command, *flags], environment)) for _ in range(runs)]


def orch(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if log := os.environ.get("ORCH_BENCH_LOG"):  # where the time goes, task by task
        with Path(log).open("a") as file:
            print(*command, done.stderr, done.stdout, sep="\n", file=file)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)


def timed(work: Callable[[], object]) -> Cost:
    began, used = time.monotonic(), processor()
    work()
    return Cost(time.monotonic() - began, processor() - used)


def processor() -> float:
    """Seconds that this machine's processors have given to us and to the nodes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime + of_nodes()


def of_nodes() -> float:
    """Our containers' groups of processes, as cgroups of version 1 and 2 tell."""
    ours = ["docker", "ps", "-q", "--no-trunc", "--filter", f"label=orch.checkout={CHECKOUT}"]
    total = 0.0
    for name in subprocess.run(ours, check=True, capture_output=True, text=True).stdout.split():
        first = CGROUPS / f"cpuacct/docker/{name}/cpuacct.usage"
        if first.exists():
            total += int(first.read_text()) / 1e9
            continue
        words = (CGROUPS / f"system.slice/docker-{name}.scope/cpu.stat").read_text().split()
        total += int(words[words.index("usage_usec") + 1]) / 1e6
    return total


def write_inventory(folder: Path, count: int, index: str) -> Path:
    """JSON is YAML; the connection is that of inventory/vagrant."""
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
    """Node after node, as the guide's steps in a shell loop do."""
    bare(count)
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
