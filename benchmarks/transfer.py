"""Measure the bytes that leave this machine for one node and for several: `python benchmarks/transfer.py`.

The nodes are namespaces of this machine (as root), whose interfaces count the bytes. Each case sends a random file with
`orch sync --model` to nodes that lack it. The last column is the ratio to one node.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "train/lib")]
MB = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--mb", type=int, default=250, help="size of the file, that of a stack's wheels by default")
    options = parser.parse_args()
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


def orch(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if os.environ.get("ORCH_BENCH_LOG"):
        print(done.stdout, done.stderr)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)


if __name__ == "__main__":
    main()
