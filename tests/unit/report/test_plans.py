"""The outline of a plan, which `orch train --dry-run` prints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.planning.plan import Plan
from orchestrator.report.plans import outline, started
from orchestrator.stacks.stack import Stack
from orchestrator.targets.ssh.plan import plan_train
from tests.conftest import make_cluster
from tests.support.plans import QA_REQUEST, REMOTE_SITE, USER_SCRIPT, make_inputs, make_remote_node


def plan_on(nodes: int, stack: Stack, **fields: object) -> Plan:
    cluster = make_cluster(*map(make_remote_node, range(nodes)))
    return plan_train(replace(QA_REQUEST, ppn=2, **fields), make_inputs(cluster, USER_SCRIPT, stack), REMOTE_SITE)


def test_outline_is_as_long_for_a_thousand_nodes_as_for_ten(test_stack: Stack) -> None:
    for fields in ({"launcher": "mpirun", "mpi": "intel"}, {"launcher": "torchrun"}):
        small, large = (outline(plan_on(nodes, test_stack, **fields)) for nodes in (10, 1000))
        assert "ranks 0-1999: 2 on each of node[0-999]: cores 0-1 / 2-3, 2 threads" in large
        assert "layout.json on node0: " in large, "its supervisor passes on what grows with the nodes"
        assert small.count("\n") == large.count("\n")
        assert len(large) - len(small) < 100
        assert sum(line.startswith("start on node0: ") for line in large.splitlines()) == 1


def test_commands_for_a_started_run_name_the_folder_of_runs(test_stack: Stack) -> None:
    plan = plan_on(2, test_stack)
    run = plan.run.run_id
    assert started(plan, Path.cwd() / "runs").endswith(f": orch attach {run} shows it, orch stop {run} ends it")
    assert f"orch attach {run} --runs-dir /r shows it, orch stop {run} --runs-dir /r" in started(plan, Path("/r"))
    members = tuple(replace(plan, run=replace(plan.run, run_id=f"sweep-{number}")) for number in range(2))
    line = started(replace(plan, array=members), Path.cwd() / "runs")
    assert line == "detached from 2 runs: orch attach sweep-0 shows one, orch stop sweep ends all"
