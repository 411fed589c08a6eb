"""Run launchers and backends on this machine, and those of three MPI implementations on two hosts."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from orchestrator.model.cluster import Link
from orchestrator.model.printable import Command
from orchestrator.planning.launchers import IMPLEMENTATIONS, LAUNCHERS
from tests.conftest import make_facts, make_node, make_spec, require_mpi
from tests.local.runs import expect_exit
from tests.local.workspaces import Workspace
from tests.support import matrix

PRINT_RANK_AND_HOSTNAME = 'echo "${PMI_RANK:-$OMPI_COMM_WORLD_RANK} $(hostname)"'


@pytest.mark.parametrize("mpi", IMPLEMENTATIONS)
def test_two_hosts_get_unequal_numbers_of_ranks(two_hosts: Workspace, mpi: str) -> None:
    lab = two_hosts.lab
    nodes = tuple(
        replace(
            make_node(host.name, replace(make_facts(numa=numa, cores=1), mpi=require_mpi(mpi)), address=host.address),
            root=str(lab.root),
        )
        for host, numa in zip(lab.hosts, (1, 2), strict=True)
    )
    links = tuple(Link(node=node.name, interface="eth0", address=node.address, reason="") for node in nodes)
    ranks = ("sh", "-c", PRINT_RANK_AND_HOSTNAME)
    spec = make_spec(nodes, links=links, run_dir=str(lab.root), train=f"{lab.root}/train", ranks=ranks, mpi=mpi)
    launch = LAUNCHERS["mpirun"](spec)
    for name, content in launch.files.items():
        (lab.hosts[0].folder / "root" / name).write_text(content)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = {"PATH": f"{Path(launch.command.argv[0]).parent}:/usr/bin:/bin"}
    command = Command(argv=launch.command.argv, env={**launch.command.env, **root, **path})
    process = expect_exit(
        subprocess.run([*lab.ssh_command(lab.hosts[0]), command.shell()], capture_output=True, text=True, timeout=60)
    )
    assert sorted(process.stdout.splitlines()) == ["0 node0", "1 node1", "2 node1"]


@pytest.mark.parametrize(("starter", "backend"), matrix.cells(1))
def test_cell_trains_on_one_node(one_host: Workspace, starter: str, backend: str) -> None:
    options = matrix.STARTERS[starter]
    require_mpi(options[options.index("--mpi") + 1] if "--mpi" in options else "intel")
    matrix.check(partial(one_host.train, code=1), starter, backend, planned=("127.0.0.1",))
