"""Measure the bytes that leave this machine for one node and for several: `python benchmarks/transfer.py`.

The nodes are namespaces of this machine (as root), whose interfaces count the bytes. Each case sends a random file with
`orch sync --model` to nodes that lack it. The last column is the ratio to one node. `--rsync` compares a step of a plan
and `orch fetch` with `rsync -a`, in turn.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[1] / name) for name in (".", "train/lib"))

from orch_node.content_store import hash_of
from orch_node.protocol.record import RunNode

from orchestrator.planning.plan import StoreFolder
from orchestrator.runs.fetch import FetchListener, Source, collect
from orchestrator.targets.connections.connection import Ssh
from orchestrator.targets.execute import store

REPOSITORY = Path(__file__).resolve().parents[1]
MB = 1_000_000
FOLDERS = {"2,000 files of 2 kB": (2000, 2000), "15,000 files of 2 kB": (15000, 2000), "500 MB": (1, 500 * MB)}
SSH_CONFIG = (
    "Host node0\n  HostName {}\n  User root\n  IdentityFile {base}/user\n  UserKnownHostsFile {base}/known_hosts\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--mb", type=int, default=250, help="size of the file, that of a stack's wheels by default")
    parser.add_argument("--rsync", type=int, metavar="REPEATS", help="compare with rsync")
    options = parser.parse_args()
    if options.rsync:
        compare_with_rsync(options.rsync)
        return
    first = None
    for count in options.nodes:
        sent, seconds = measure(count, options.mb)
        first = first or sent
        print(f"{count:3} nodes  {sent / MB:8.1f} MB  {seconds:6.1f} s  {sent / first:5.2f} x", flush=True)


def measure(count: int, size: int) -> tuple[int, float]:
    """Return the bytes that leave this machine while nodes get a file of this size in MB, and the seconds."""
    from tests.conftest import orch_environment
    from tests.support.hosts import Hosts

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model.bin"
        model.write_bytes(os.urandom(size * MB))
        lab = Hosts(folder / "hosts", count)
        try:
            environment = {**orch_environment(folder), "PYTHONPATH": str(REPOSITORY)}
            inventory = lab.write_inventory(environment)
            command = [sys.executable, "-m", "orchestrator.cli.main", "sync", str(inventory)]
            orch(command, environment)  # the scripts
            before, began = sum(lab.sent_bytes()), time.monotonic()
            orch([*command, "--model", str(model)], environment)
            seconds = time.monotonic() - began
            sent = sum(lab.sent_bytes()) - before
            for host in lab.hosts:
                copy = host.folder / "root/models/model.bin"
                assert copy.read_bytes() == model.read_bytes(), f"{host.name} has another file"
            return sent, seconds
        finally:
            lab.stop()


def compare_with_rsync(repeats: int) -> None:
    """Print the seconds of orch and of `rsync -a` over the same ssh, for folders that the receiver lacks."""
    from tests.support.hosts import Hosts

    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        lab = Hosts(base / "hosts", 1)
        try:
            config = base / "config"
            config.write_text(SSH_CONFIG.format(lab.hosts[0].ssh_address, base=lab.base))
            for title, (count, size) in FOLDERS.items():
                compare(title, make_folder(base / "source", count, size), str(lab.root), str(config), repeats)
        finally:
            lab.stop()


def make_folder(folder: Path, count: int, size: int) -> Path:
    """Return a folder with files of random bytes, 50 in each of its folders."""
    shutil.rmtree(folder, ignore_errors=True)
    for index in range(count):
        path = folder / f"folder{index // 50}" / f"file{index}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    return folder


def compare(title: str, source: Path, root: str, config: str, repeats: int) -> None:
    """Print the seconds of both programs in both directions."""
    target, rsync_target = source.with_name("target"), f"{root}/rsync"
    step = StoreFolder(
        nodes=(RunNode(node="node0"),),
        source=str(source),
        files=(),
        path=f"{root}/store/{hash_of(source)}",
        node_program=(sys.executable, f"{root}/train/node.py"),
        run_dir=f"{root}/runs/run",
    )
    rsync = ["rsync", "-a", "-e", f"ssh -F {config}"]
    cases: dict[str, Callable[[], object]] = {
        "send orch": lambda: on_node(config, lambda ssh: store(step, {"node0": ssh})),
        "send rsync": lambda: subprocess.run([*rsync, f"{source}/", f"node0:{rsync_target}"], check=True),
        "fetch orch": lambda: on_node(config, lambda ssh: fetch(ssh, rsync_target, target)),
        "fetch rsync": lambda: subprocess.run([*rsync, f"node0:{rsync_target}/", str(target)], check=True),
    }
    clear = ("sh", "-c", 'chmod -R u+w "$1"; rm -rf "$1" "$2"', "sh", f"{root}/store", str(rsync_target))
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        on_node(config, lambda ssh: ssh.capture(clear, seconds=600))
        for name, action in cases.items():
            shutil.rmtree(target, ignore_errors=True)
            began = time.monotonic()
            action()
            seconds[name].append(time.monotonic() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for direction in ("send", "fetch"):
        orch_seconds, rsync_seconds = medians[f"{direction} orch"], medians[f"{direction} rsync"]
        ratio = orch_seconds / rsync_seconds
        print(f"{title}: {direction}: {orch_seconds:.1f} s, rsync {rsync_seconds:.1f} s, {ratio:.2f} x", flush=True)


def on_node(config: str, action: Callable[[Ssh], object]) -> None:
    ssh = Ssh("node0", config)
    try:
        action(ssh)
    finally:
        ssh.close()


def fetch(ssh: Ssh, folder: str, target: Path) -> None:
    collect([Source(name="node0", remote=ssh, python=sys.executable)], [folder], target, listener=FetchListener())


def orch(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if os.environ.get("ORCH_BENCH_LOG"):
        print(done.stdout, done.stderr)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)


if __name__ == "__main__":
    main()
