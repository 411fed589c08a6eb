"""Train on five hosts of this machine on which MPI starts its daemons as a tree, as on more than 16 nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import require_mpi
from tests.local.workspaces import Workspace, make_hosts
from tests.support.matrix import STARTERS

HOSTS = 5
TWO_WIDE_TREE = {"I_MPI_HYDRA_BRANCH_COUNT": "2", "PRTE_MCA_rml_base_radix": "2"}
# Each rank prints the sum of all ranks, and the address from which ssh started the daemon above it.
SCRIPT = """
import os
import torch
import torch.distributed as dist

def starter():
    pid, address = os.getppid(), ""
    while pid > 1:
        variables = dict(v.split("=", 1) for v in open(f"/proc/{pid}/environ").read().split("\\0") if "=" in v)
        program = os.path.basename(open(f"/proc/{pid}/cmdline").read().split("\\0")[0])
        if program.startswith(("hydra_", "prted")):
            address = variables.get("SSH_CONNECTION", "").split(" ")[0]
        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    return address

if not dist.is_initialized():
    dist.init_process_group()
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
print("SUM", total.item())
print("STARTER", starter())
dist.destroy_process_group()
"""
LAUNCHERS = ["mpirun, Intel MPI", "mpirun, MPICH", "mpirun, Open MPI", "accelerate, Intel MPI", "torchrun"]
STARTS_TREE = ("mpirun, Intel MPI", "accelerate, Intel MPI")


@pytest.fixture(scope="module")
def five_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Yield a workspace that trains on one rank of each of five hosts."""
    folder = tmp_path_factory.mktemp("five")
    with make_hosts(folder, "--ppn", "1", "--backend", "gloo", count=HOSTS, variables=TWO_WIDE_TREE) as workspace:
        yield workspace


@pytest.mark.parametrize("starter", LAUNCHERS)
def test_ranks_start_although_daemons_are_started_by_other_nodes(five_hosts: Workspace, starter: str) -> None:
    options = STARTERS[starter]
    require_mpi(options[options.index("--mpi") + 1] if "--mpi" in options else "intel")
    cell = five_hosts.train_text(SCRIPT, *options)
    assert [cell.printed("SUM", rank) for rank in range(HOSTS)] == ["10.0"] * HOSTS
    if starter in STARTS_TREE:
        starters = {cell.printed("STARTER", rank) for rank in range(HOSTS)}
        assert starters & {host.address for host in five_hosts.lab.hosts[1:]}, "MPI has started no tree"
