"""The real launchers of the three flavours of MPI put ranks where the layout has them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.launchers import DIALECTS, LAUNCHERS
from orchestrator.model.cluster import Node
from orchestrator.model.command import Command
from orchestrator.model.links import Link
from tests.conftest import make_facts, make_job, make_node, mpi_here
from tests.local.runs import expect_exit
from tests.local.workspaces import Workspace

SSH = """#!/bin/sh
while :; do case $1 in -F) shift 2;; -*) shift;; *) break;; esac; done
export HOST=$1
shift
exec sh -c "$*"
"""
SHOW = 'echo "${PMI_RANK:-$OMPI_COMM_WORLD_RANK} ${HOST:-127.0.0.1} $(taskset -p $$ | tail -c2)"'


def nodes_of(counts: tuple[int, ...], mpi: dict[str, str]) -> tuple[Node, ...]:
    """Nodes with so many NUMA nodes each, all of them on this machine's loopback."""
    return tuple(
        replace(
            make_node(f"node{index}", replace(make_facts(numa=numa, cores=2), mpi=mpi), address=f"127.0.0.{index}"),
            root="/nowhere",
        )
        for index, numa in enumerate(counts, start=1)
    )


@pytest.mark.parametrize("mpi", ["intel", "mpich"])  # to Open MPI all of 127.* is one host
def test_every_host_gets_the_ranks_of_its_own_layout(tmp_path: Path, mpi: str) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    nodes = nodes_of((2, 3, 1), mpi_here(mpi))
    job = make_job(
        nodes,
        links=tuple(Link(node=node.name, interface="lo", address=node.address, reason="") for node in nodes),
        run_dir=str(tmp_path),
        ranks=("sh", "-c", SHOW),
        mpi=mpi,
    )
    launch = LAUNCHERS["mpirun"](job)
    for name, content in launch.files.items():
        (tmp_path / name).write_text(content)
    path = f"{tmp_path}:{Path(launch.command.argv[0]).parent}:{os.environ['PATH']}"
    process = subprocess.run(
        launch.command.argv,
        env={**os.environ, **dict(launch.command.env), "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    rows = [line.split() for line in process.stdout.splitlines()]
    address = {node.name: node.address for node in nodes}
    planned = {str(place.rank): address[place.node] for place in job.layout.rank_places}
    assert {rank: host for rank, host, _ in rows} == planned
    assert len({mask for _, _, mask in rows}) == 1, "no launcher binds: the wrapper does"


@pytest.mark.parametrize("mpi", DIALECTS)
def test_two_hosts_get_unequal_numbers_of_ranks(two_hosts: Workspace, mpi: str) -> None:
    lab, found = two_hosts.lab, mpi_here(mpi)
    nodes = tuple(
        replace(
            make_node(host.name, replace(make_facts(numa=numa, cores=1), mpi=found)),
            address=host.address,
            root=str(lab.root),
        )
        for host, numa in zip(lab.hosts, (1, 2), strict=True)
    )
    links = tuple(Link(node=node.name, interface="eth0", address=node.address, reason="") for node in nodes)
    show = ("sh", "-c", 'echo "${PMI_RANK:-$OMPI_COMM_WORLD_RANK} $(hostname)"')
    job = make_job(nodes, links=links, run_dir=str(lab.root), ranks=show, mpi=mpi)
    launch = LAUNCHERS["mpirun"](job)
    home = lab.hosts[0].folder / "root"
    for name, content in launch.files.items():
        (home / name).write_text(content)
    root = (("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"))
    path = ("PATH", f"{Path(launch.command.argv[0]).parent}:/usr/bin:/bin")
    command = Command(argv=launch.command.argv, env=(*launch.command.env, *root, path))
    process = expect_exit(
        subprocess.run([*lab.reach(lab.hosts[0]), command.shell()], capture_output=True, text=True, timeout=60)
    )
    assert sorted(process.stdout.splitlines()) == ["0 node0", "1 node1", "2 node1"]
