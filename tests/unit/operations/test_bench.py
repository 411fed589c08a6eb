"""The figures of the runs of `orch bench`."""

from __future__ import annotations

from orchestrator.model.measurement import Measurement, RunRates
from orchestrator.operations.bench import Figures, LinkFigures, LinkRow, add_run
from orchestrator.stacks.stack import Stack
from orchestrator.targets.ssh.plan import plan_train
from tests.conftest import make_cluster, make_facts
from tests.support.plans import QA_RECIPE, QA_REQUEST, REMOTE_SITE, make_inputs, make_remote_node
from tests.unit.model.test_slowness import RATES


def test_figures_are_those_of_the_nodes_and_ranks_of_the_plan(test_stack: Stack) -> None:
    """Record the cores of each node, and no links to ranks that the run does not have."""
    nodes = (make_remote_node(0, make_facts(cores=4)), make_remote_node(1, make_facts(cores=2)))
    plan = plan_train(QA_REQUEST, make_inputs(make_cluster(*nodes), QA_RECIPE, test_stack), REMOTE_SITE)
    links = LinkFigures(rows=tuple(LinkRow(peer=peer, gbit=9.0, microseconds=50.0) for peer in (1, 7)))
    run_rates = RunRates(samples=1.0, threads=4, precision="fp32")
    figures: Figures = [(0, RATES), (1, RATES), (0, run_rates), (0, links)]
    result = add_run(Measurement(date="", stack="", fingerprint=""), plan, figures, plan.run)
    assert {node.node: node.cores for node in result.nodes} == {"node0": 4, "node1": 2}
    assert [(link.source, link.destination) for link in result.links] == [("node1", "node0")]
