"""How long provisioning takes on the test cluster: `python benchmarks/provision.py [--nodes 2 4]`.

For each number of nodes, from bare: `orch provision` (wheelhouse at hand), its second run, and two
ways that people do it now: the wheels pushed to each node in turn with plain ssh and installed by
pip (the manual steps in a loop), and pip on every node from its own index (--index URL; left out
without it). Prints seconds, and ratios to orch. The nodes are made anew for every measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
STATE = CHECKOUT / "cluster/.state"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orch/wheelhouses"
PACKAGES = "numactl rsync openssh-client libhwloc15 libtcmalloc-minimal4 python3-venv"
PREPARE = (
    "sudo apt-get update -qq && sudo DEBIAN_FRONTEND=noninteractive apt-get install -qqy "
    f"--no-install-recommends {PACKAGES} && python3 -m venv manual"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--index", help="URL of an index that the nodes reach")
    options = parser.parse_args()
    for count in options.nodes:
        first, second = by_orch(count)
        row = {"orch, first": first, "orch, second": second, "ssh in a loop": by_hand(count, None)}
        if options.index:
            row["pip from the index"] = by_hand(count, options.index)
        for way, seconds in row.items():
            print(f"{count} nodes  {way:<20} {seconds:7.1f} s  {seconds / first:5.2f}", flush=True)
    return 0


def bare(count: int) -> None:
    environment = {**os.environ, "NODES": str(max(count, 2)), "VAGRANT_DEFAULT_PROVIDER": "docker"}
    for script in ("down", "up"):
        command = [str(CHECKOUT / "cluster" / script)]
        subprocess.run(command, env=environment, check=True, capture_output=True)


def by_orch(count: int) -> tuple[float, float]:
    bare(count)
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "XDG_STATE_HOME": state}
        inventory = write_inventory(Path(state), count)
        command = [sys.executable, "-m", "orchestrator.cli.main", "provision", str(inventory)]
        seconds = []
        for _ in range(2):
            began = time.monotonic()
            done = subprocess.run([*command, "--json"], env=environment, capture_output=True)
            seconds.append(time.monotonic() - began)
            if done.returncode != 0:
                raise RuntimeError(done.stdout.decode() + done.stderr.decode())
    return seconds[0], seconds[1]


def write_inventory(folder: Path, count: int) -> Path:
    """JSON is YAML; the connection is that of inventory/vagrant."""
    arguments = (
        f"-o UserKnownHostsFile={STATE}/known_hosts -o StrictHostKeyChecking=yes "
        "-o IdentitiesOnly=yes"
    )
    variables = {
        "ansible_user": "vagrant",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_private_key_file": str(STATE / "id_ed25519"),
        "ansible_ssh_common_args": arguments,
    }
    hosts = {f"node{i}": {"ansible_host": f"192.168.61.{10 + i}"} for i in range(count)}
    path = folder / "hosts.yml"
    path.write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))
    return path


def by_hand(count: int, index: str | None) -> float:
    """Node after node, as the guide's steps in a shell loop do."""
    bare(count)
    locks = CACHE.glob("current-*/lock.json")
    wheelhouse = max(locks, key=lambda path: path.stat().st_mtime).parent
    began = time.monotonic()
    for number in range(count):
        node = f"node{number}"
        ssh(node, PREPARE)
        if index:
            names = [f"{w['name']}=={w['version']}" for w in locked(wheelhouse)]
            ssh(node, f"manual/bin/pip install -q --index-url {index} {' '.join(names)}")
        else:
            copy = ["scp", "-q", "-F", str(STATE / "ssh_config"), "-r", str(wheelhouse)]
            subprocess.run([*copy, f"{node}:wheels"], check=True)
            files = " ".join(f"wheels/{wheel['file']}" for wheel in locked(wheelhouse))
            ssh(node, f"manual/bin/pip install -q --no-index --no-deps {files}")
    return time.monotonic() - began


def locked(wheelhouse: Path) -> list[dict[str, str]]:
    return [wheel for wheel in json.loads((wheelhouse / "lock.json").read_text())
            if wheel["name"] != "uv"]  # fmt: skip


def ssh(node: str, text: str) -> None:
    command = ["ssh", "-F", str(STATE / "ssh_config"), node, text]
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    raise SystemExit(main())
