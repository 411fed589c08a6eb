"""The figures of the runs of `orch bench`."""

from __future__ import annotations

from orchestrator.model.measurement import Measurement
from orchestrator.operations.bench import Figures, LinkFigures, LinkRow, RunFigures, add_run
from orchestrator.stacks.stack import Stack
from orchestrator.targets.ssh.plan import plan_train
from tests.conftest import make_cluster, make_facts
from tests.support.plans import QA_RECIPE, QA_REQUEST, REMOTE_SITE, make_inputs, make_remote_node
from tests.unit.model.test_slowness import RATES


def test_node_with_fewer_cores_than_the_first_one_has_its_own_number(test_stack: Stack) -> None:
    nodes = (make_remote_node(0, make_facts(cores=4)), make_remote_node(1, make_facts(cores=2)))
    plan = plan_train(QA_REQUEST, make_inputs(make_cluster(*nodes), QA_RECIPE, test_stack), REMOTE_SITE)
    figures: Figures = [(0, RATES), (1, RATES), (0, RunFigures(samples=1.0, threads=4, precision="fp32"))]
    result = add_run(Measurement(date="", stack="", fingerprint=""), plan, figures, plan.run)
    assert {node.node: node.cores for node in result.nodes} == {"node0": 4, "node1": 2}


def test_links_to_unknown_ranks_are_left_out(test_stack: Stack) -> None:
    nodes = (make_remote_node(0, make_facts(cores=2)), make_remote_node(1, make_facts(cores=2)))
    plan = plan_train(QA_REQUEST, make_inputs(make_cluster(*nodes), QA_RECIPE, test_stack), REMOTE_SITE)
    rows = tuple(LinkRow(peer=peer, gbit=9.0, microseconds=50.0) for peer in (1, 7))
    result = add_run(Measurement(date="", stack="", fingerprint=""), plan, [(0, LinkFigures(rows=rows))], plan.run)
    assert [(link.source, link.destination) for link in result.links] == [("node1", "node0")]
