"""The real mpiexec.hydra, with an `ssh` that stays on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from orchestrator.launchers import LAUNCHERS
from orchestrator.layout import lay_out
from orchestrator.network import Link
from tests.conftest import make_facts, make_node

SSH = """#!/bin/sh
while :; do case $1 in -F) shift 2;; -*) shift;; *) break;; esac; done
export HOST=$1
shift
exec sh -c "$*"
"""


def test_every_host_gets_the_ranks_of_its_own_layout(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    mpiexec = Path(sys.executable).with_name("mpiexec.hydra")
    nodes = tuple(
        make_node(
            f"node{index}",
            replace(make_facts(numa=numa, cores=2), mpiexec=str(mpiexec)),
            address=f"127.0.0.{index}",
        )
        for index, numa in enumerate((2, 3, 1), start=1)
    )
    layout = lay_out(nodes, None)
    launch = LAUNCHERS["mpirun"](
        nodes,
        layout=layout,
        links=tuple(
            Link(node=node.name, interface="lo", address=node.address, reason="") for node in nodes
        ),
        hostfile=str(tmp_path / "hostfile"),
        ranks=("sh", "-c", 'echo "$PMI_RANK ${HOST:-127.0.0.1}"'),
    )
    (tmp_path / "hostfile").write_text(launch.hostfile)
    path = f"{tmp_path}:{mpiexec.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        launch.command.argv,
        env={**os.environ, **dict(launch.command.env), "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    placed = dict(line.split() for line in done.stdout.splitlines())
    address = {node.name: node.address for node in nodes}
    assert placed == {str(place.rank): address[place.node] for place in layout.places}
