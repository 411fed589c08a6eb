"""Send files to four hosts of this machine, and train there with chains of MPI's daemons, as on more than 16 nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require_mpi
from tests.local.runs import expect_exit
from tests.local.workspaces import Workspace, make_hosts
from tests.support.hosts import Hosts, ip_in, run_program
from tests.support.matrix import STARTERS

HOSTS, RANKS = 4, 3
CHAIN = {"I_MPI_HYDRA_BRANCH_COUNT": "1", "PRTE_MCA_rml_base_radix": "1"}  # each daemon starts one other
# Each rank prints the sum of all ranks, the address from which ssh started the daemon above it, and whether that was
# the connection of the node's agent.
SCRIPT = """
import os
import torch
import torch.distributed as dist

def connection(pid):
    variables = dict(v.split("=", 1) for v in open(f"/proc/{pid}/environ").read().split("\\0") if "=" in v)
    return variables.get("SSH_CONNECTION", "")

def arguments(pid):
    return open(f"/proc/{pid}/cmdline").read().split("\\0")

def daemon_connection():
    pid, found = os.getppid(), ""
    while pid > 1:
        if os.path.basename(arguments(pid)[0]).startswith(("hydra_", "prted")):
            found = connection(pid)
        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    return found

def agent_connections():
    return {connection(pid) for pid in os.listdir("/proc") if pid.isdigit() and "agent" in arguments(pid)}

if not dist.is_initialized():
    dist.init_process_group()
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
print("SUM", total.item())
print("STARTER", daemon_connection().split(" ")[0])
print("SHARED", bool(daemon_connection()) and daemon_connection() in agent_connections())
dist.destroy_process_group()
"""
MB = 1_000_000
LAUNCHERS = ["mpirun, Intel MPI", "mpirun, Open MPI"]  # MPICH starts its daemons as Intel MPI does


@pytest.fixture(scope="module")
def four_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Yield a workspace that trains on one rank of each of the first three of four hosts."""
    options = ("--nodes", str(RANKS), "--ppn", "1", "--backend", "gloo")
    with make_hosts(tmp_path_factory.mktemp("four"), *options, count=HOSTS, variables=CHAIN) as workspace:
        yield workspace


@pytest.mark.parametrize("starter", LAUNCHERS)
def test_ranks_start_although_daemons_are_started_by_other_nodes(four_hosts: Workspace, starter: str) -> None:
    options = STARTERS[starter]
    require_mpi(options[options.index("--mpi") + 1] if "--mpi" in options else "intel")
    (four_hosts.folder / "weights.bin").write_bytes(os.urandom(3 * MB))  # a part of the project that is always new
    sent, connections = four_hosts.lab.sent_bytes(), client_connections(four_hosts.lab)
    cell = four_hosts.train_text(SCRIPT, *options)
    assert sum(four_hosts.lab.sent_bytes()) - sum(sent) < 1.5 * 3 * MB, "the project left this machine more than once"
    assert client_connections(four_hosts.lab) == [number + 1 for number in connections], "logs come through node0"
    assert [cell.printed("SUM", rank) for rank in range(RANKS)] == ["3.0"] * RANKS
    shared = {cell.printed("SHARED", rank) for rank in range(RANKS)}
    assert "True" in shared, "no daemon uses the connection of an agent"
    if starter == "mpirun, Intel MPI":
        starters = {cell.printed("STARTER", rank) for rank in range(RANKS)}
        assert starters & {host.address for host in four_hosts.lab.hosts[1:]}, "MPI has started no chain"


def client_connections(lab: Hosts) -> list[int]:
    """Return how often this machine has connected to each host with a rank but the first."""
    pattern = rf"(?m)^Accepted .* from {re.escape(lab.wire_network)}\."
    return [len(re.findall(pattern, (host.folder / "sshd.log").read_text())) for host in lab.hosts[1:RANKS]]


def test_files_reach_most_hosts_through_other_hosts(four_hosts: Workspace, tmp_path: Path) -> None:
    """Send a file through node0, which cannot reach node1; node2 is behind node1."""
    lab, model = four_hosts.lab, tmp_path / "model"
    model.write_bytes(os.urandom(20 * MB))
    before = lab.sent_bytes()
    node0, route = ip_in(lab.hosts[0].process.pid), ("blackhole", f"{lab.hosts[1].address}/32")
    run_program(*node0, "route", "add", *route)
    try:
        process = four_hosts.orch("sync", four_hosts.options[-1], "--model", str(model))
    finally:
        run_program(*node0, "route", "del", *route)
    messages = expect_exit(process).stderr
    assert re.search(r"node1: gets its files directly from this machine.*node0.*ssh: connect to host", messages)
    for host in lab.hosts:
        assert (host.folder / "root/models/model").read_bytes() == model.read_bytes(), host.name
    sent = [(after - earlier) / (20 * MB) for earlier, after in zip(before, lab.sent_bytes(), strict=True)]
    assert [round(share) for share in sent] == [1, 1, 0, 0], sent
