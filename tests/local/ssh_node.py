"""A node behind a real sshd on this machine, recorded as provisioning leaves it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.files import STANDALONE, TRAIN, State
from tests.conftest import orch_environment
from tests.local.runs import SUM_SCRIPT, write_script

INVENTORY = ("--inventory", "./lab.yaml")
TWO_RANKS = ("--ppn", "2", "--backend", "gloo")


@dataclass(frozen=True, slots=True, kw_only=True)
class SshNode:
    """The node `far` of the inventory lab.yaml.

    Attributes:
        state: the controller's folder of the inventory.
        root: orch's folder on the node.
    """

    state: Path
    root: Path

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.state)) for path in self.state.rglob("*"))


def make_ssh_node(folder: Path, ssh_config: str) -> SshNode:
    """Write an inventory with a node, the node's folder and its record."""
    root = folder / "orch"  # as in a home that the node shares with the controller
    (root / "stacks").mkdir(parents=True)
    (root / "train").symlink_to(TRAIN)
    (root / "stacks/current").symlink_to(Path(sys.prefix))
    inventory = folder / "lab.yaml"
    inventory.write_text("all:\n  hosts:\n    far:\n      ansible_host: 127.0.0.1\n")
    clusters = Path(orch_environment(folder)["XDG_STATE_HOME"]) / "orch/clusters"
    state = clusters / State.of(inventory).folder.name
    (state / "nodes").mkdir(parents=True)
    (state / "nodes/far.json").write_text(json.dumps(node_record(root, ssh_config)))
    write_script(folder, SUM_SCRIPT)
    write_script(folder, "import time, torch\nprint('begun', flush=True)\ntime.sleep(600)\n", "long.py")
    return SshNode(state=state, root=root)


def node_record(root: Path, ssh_config: str) -> dict[str, Any]:
    """Return what provisioning records of a node: its facts and its connection."""
    command = [sys.executable, "-I", "-S", str(STANDALONE / "facts.py"), sys.prefix]
    facts = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    options = dict(line.split()[:2] for line in Path(ssh_config).read_text().splitlines())
    connection = {
        "host": options["HostName"],
        "port": options["Port"],
        "key": options["IdentityFile"],
        "arguments": f"-o UserKnownHostsFile={options['UserKnownHostsFile']}",
    }
    return {**facts, "root": str(root), "address": "127.0.0.1", "connection": connection}
