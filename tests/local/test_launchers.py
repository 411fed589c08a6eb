"""Check that the launchers of three MPI implementations put ranks on the planned hosts."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.files import TRAIN
from orchestrator.model.cluster import Link, Node, lay_out
from orchestrator.model.printable import Command
from orchestrator.planning.launchers import IMPLEMENTATIONS, LAUNCHERS, Launch
from tests.conftest import make_facts, make_node, make_spec, require_mpi
from tests.local.runs import expect_exit
from tests.local.workspaces import Workspace

# Runs commands for any host on this machine, with the host in a variable.
FAKE_SSH = """#!/bin/sh
while :; do case $1 in -F|-o) shift 2;; -*) shift;; *) break;; esac; done
export HOST=$1
shift
exec sh -c "$*"
"""
PRINT_RANK = 'echo "${PMI_RANK:-$OMPI_COMM_WORLD_RANK} ${HOST:-127.0.0.1} $(taskset -p $$ | tail -c2)"'
PRINT_RANK_AND_HOSTNAME = 'echo "${PMI_RANK:-$OMPI_COMM_WORLD_RANK} $(hostname)"'


def make_numa_node(name: str, address: str, mpi: dict[str, str], root: str, *, numa: int, cores: int) -> Node:
    """Return a node with this number of NUMA nodes."""
    facts = replace(make_facts(numa=numa, cores=cores), mpi=mpi)
    return replace(make_node(name, facts, address=address), root=root)


def make_launch(
    nodes: tuple[Node, ...], folder: Path, run_dir: str, *, train: str, interface: str, ranks: str, mpi: str
) -> Launch:
    """Return mpirun's launch of a shell script on all nodes; write its files into the folder."""
    links = tuple(Link(node=node.name, interface=interface, address=node.address, reason="") for node in nodes)
    spec = make_spec(nodes, links=links, run_dir=run_dir, train=train, ranks=("sh", "-c", ranks), mpi=mpi)
    launch = LAUNCHERS["mpirun"](spec)
    for name, content in launch.files.items():
        (folder / name).write_text(content)
    return launch


@pytest.mark.parametrize("mpi", ["intel", "mpich"])  # Open MPI takes all of 127.* for one host
def test_each_host_gets_the_ranks_of_its_layout(tmp_path: Path, mpi: str) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(FAKE_SSH)
    ssh.chmod(0o755)
    nodes = tuple(
        make_numa_node(f"node{index}", f"127.0.0.{index}", require_mpi(mpi), "/nowhere", numa=numa, cores=2)
        for index, numa in enumerate((2, 3, 1), start=1)
    )
    launch = make_launch(nodes, tmp_path, str(tmp_path), train=str(TRAIN), interface="lo", ranks=PRINT_RANK, mpi=mpi)
    path = f"{tmp_path}:{Path(launch.command.argv[0]).parent}:{os.environ['PATH']}"
    environment = {**os.environ, **dict(launch.command.env), "PATH": path}
    process = expect_exit(
        subprocess.run(launch.command.argv, env=environment, capture_output=True, text=True, timeout=60)
    )
    rows = [line.split() for line in process.stdout.splitlines()]
    addresses = {node.name: node.address for node in nodes}
    planned = {str(rank_place.rank): addresses[rank_place.node] for rank_place in lay_out(nodes, None).rank_places}
    assert {rank: host for rank, host, _ in rows} == planned
    assert len({mask for _, _, mask in rows}) == 1, "the wrapper pins ranks to cores, the launcher does not"


@pytest.mark.parametrize("mpi", IMPLEMENTATIONS)
def test_two_hosts_get_unequal_numbers_of_ranks(two_hosts: Workspace, mpi: str) -> None:
    lab = two_hosts.lab
    nodes = tuple(
        make_numa_node(host.name, host.address, require_mpi(mpi), str(lab.root), numa=numa, cores=1)
        for host, numa in zip(lab.hosts, (1, 2), strict=True)
    )
    folder = lab.hosts[0].folder / "root"
    train, ranks = f"{lab.root}/train", PRINT_RANK_AND_HOSTNAME
    launch = make_launch(nodes, folder, str(lab.root), train=train, interface="eth0", ranks=ranks, mpi=mpi)
    root = (("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"))
    path = ("PATH", f"{Path(launch.command.argv[0]).parent}:/usr/bin:/bin")
    command = Command(argv=launch.command.argv, env=(*launch.command.env, *root, path))
    process = expect_exit(
        subprocess.run([*lab.ssh_command(lab.hosts[0]), command.shell()], capture_output=True, text=True, timeout=60)
    )
    assert sorted(process.stdout.splitlines()) == ["0 node0", "1 node1", "2 node1"]
