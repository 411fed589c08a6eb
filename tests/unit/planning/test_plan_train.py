from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from orch_node.protocol.record import RunNode

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Cluster, Node
from orchestrator.model.project import Project
from orchestrator.model.recipe import Recipe
from orchestrator.planning.plan import Plan, PutFile, RunProgram, SendFile, StartRun
from orchestrator.planning.request import Resume
from orchestrator.stacks.stack import Stack
from orchestrator.targets.ssh.plan import plan_train
from tests.conftest import make_cluster, make_facts, make_node
from tests.support import plans
from tests.support.recorded import RUN_RECORD

TWO = make_cluster(*plans.TWO_NODES)
# Nodes with two NUMA nodes, with one, and with one, fewer cores and another interface name.
UNEVEN = make_cluster(
    plans.make_remote_node(0, make_facts(numa=2, cores=4)),
    plans.make_remote_node(1, make_facts(numa=1, cores=4)),
    plans.make_remote_node(2, make_facts(numa=1, cores=3), interface="ens5"),
)


def decide(
    stack: Stack,
    *,
    cluster: Cluster | None = None,
    node: Node | None = None,
    recipe: Recipe = plans.QA_RECIPE,
    resume: Resume | None = None,
    **fields: Any,
) -> Plan:
    """Return the plan of a request with these fields, on a cluster or on one node of this machine."""
    inputs = plans.make_inputs(cluster or make_cluster(node or make_node()), recipe, stack)
    site = replace(plans.REMOTE_SITE if cluster else plans.LOCAL_SITE, resume=resume)
    return plan_train(replace(plans.QA_REQUEST, **fields), inputs, site)


def argv(plan: Plan) -> tuple[str, ...]:
    (start,) = (step for step in plan.steps if isinstance(step, StartRun))
    return start.command.argv


def test_own_script_decides_its_precision(test_stack: Stack) -> None:
    with pytest.raises(PlanError, match="applies to recipes only"):
        decide(test_stack, recipe=plans.USER_SCRIPT, precision="bf16")
    plan = decide(test_stack, recipe=plans.USER_SCRIPT, script_args=("--x", "$(y)"))
    assert argv(plan)[-3:] == ("/home/me/own script.py", "--x", "$(y)")


def test_golden_plan(test_stack: Stack) -> None:
    for name, cluster, fields in (
        ("local", None, {"ppn": 2}),
        ("two-nodes", TWO, {"ppn": 2}),
        ("uneven-nodes", UNEVEN, {}),
    ):
        assert decide(test_stack, cluster=cluster, **fields).describe() == (plans.GOLDEN / f"{name}.sh").read_text()


def with_spare(spare: Node) -> Cluster:
    return replace(TWO, nodes=(*TWO.nodes, spare), selection=replace(TWO.selection, spares=(spare.name,)))


def test_spare_node_has_the_files_and_no_rank(test_stack: Stack) -> None:
    plan = decide(test_stack, cluster=with_spare(plans.make_remote_node(2)), ppn=1, max_restarts=1, spare_nodes=1)
    assert "spare nodes: node2 (to replace lost nodes)" in plan.summary()
    files = {Path(step.path).name: step for step in plan.steps if isinstance(step, PutFile)}
    assert [host.node for host in files["env.json"].nodes] == ["node0", "node1", "node2"]
    value = json.loads(files["layout.json"].content)
    assert value["spares"] == {"node2": "10.0.0.2"}
    assert {rank["node"] for rank in value["ranks"]} == {"node0", "node1"}
    assert [node["name"] for node in value["nodes"]] == ["node0", "node1", "node2"]


def test_spare_node_must_match_the_others_and_needs_restarts(test_stack: Stack) -> None:
    for spare, restarts, message in (
        (plans.make_remote_node(2, make_facts(cores=3)), 1, "node2 cannot be a spare for node0, node1"),
        (plans.make_remote_node(2), 0, "--spare-nodes without --max-restarts"),
    ):
        with pytest.raises(PlanError, match=message):
            decide(test_stack, cluster=with_spare(spare), spare_nodes=1, max_restarts=restarts)


RESUME = Resume(record=RUN_RECORD, state="failed")


def test_next_attempt_prepares_the_folder_on_all_nodes_before_it_is_written(test_stack: Stack) -> None:
    plan = decide(test_stack, cluster=TWO, resume=replace(RESUME, attempt=3))
    step = next(step for step in plan.steps if not isinstance(step, SendFile))
    assert isinstance(step, RunProgram)
    assert [node.node for node in step.nodes] == ["node0", "node1"]
    assert "--first-attempt=3" in argv(plan)
    assert "--output_dir=/opt/orch/runs/r/output" in argv(plan)
    assert any("attempt 3 (the last one failed; from the newest valid checkpoint)" in line for line in plan.summary())


def test_node0_of_the_last_attempt_gives_its_files_to_another_one(test_stack: Stack) -> None:
    node0, node1 = TWO.nodes
    recorded = tuple(RunNode(node=node.name, via=node.via) for node in (node1, node0, plans.make_remote_node(2)))
    project = Project(folder="/home/me", files={"train.py": "1" * 64}, size=9)
    resume = replace(RESUME, record=replace(RUN_RECORD, nodes=recorded), project=project)
    plan = decide(test_stack, cluster=TWO, resume=resume)
    (sharing,) = [step for step in plan.steps if isinstance(step, RunProgram) and "share-files" in step.command]
    assert ([node.node for node in sharing.nodes], sharing.command[-2:]) == (["node1"], ("1", "node0"))
    assert [node.node for node in plan.run.earlier_nodes] == ["node2"]
    assert any("as node1 has them" in line for line in plan.summary())
    forced = decide(test_stack, cluster=TWO, resume=replace(resume, without_files=True))
    assert len([step for step in forced.steps if isinstance(step, RunProgram)]) == 1
    assert any("as node0 has them (node1 was lost)" in line for line in forced.summary())


def test_files_of_this_machine_are_sent_to_every_node(test_stack: Stack) -> None:
    plan = decide(test_stack, cluster=TWO, recipe=plans.USER_SCRIPT)
    sent = [step for step in plan.steps if isinstance(step, SendFile)]
    assert [node.node for step in sent for node in step.nodes] == ["node0", "node1"]
    assert {step.source for step in sent} == {plans.USER_SCRIPT.script}
    assert argv(plan)[-1] == sent[0].path == "/opt/orch/runs/r/files/0/own script.py"


def test_reserved_cores_are_passed_to_oneccl(test_stack: Stack) -> None:
    two_backends = replace(test_stack, backends=("ccl", "gloo"), bindings=plans.BINDINGS)
    plan = decide(two_backends, ppn=2, ccl_workers=1)
    files = {s.path: s.content for s in plan.steps if isinstance(s, PutFile)}
    ranks = json.loads(files["/runs/qa-0000/layout.json"])["ranks"]
    assert [rank["cpus"] for rank in ranks] == [[0], [2]]
    assert [rank["env"] for rank in ranks] == [
        {"CCL_WORKER_OFFLOAD": "1", "CCL_WORKER_COUNT": "1", "CCL_WORKER_AFFINITY": "1,3"}
    ] * 2


def test_ipex_is_refused_if_it_is_not_known_to_train(test_stack: Stack) -> None:
    ipex = {**test_stack.requirements, "intel-extension-for-pytorch": "2.13.0"}
    facts = replace(make_facts(), packages={"torch": "2.13.0", **ipex})
    node = make_node(facts=facts)
    with_ipex = replace(test_stack, requirements=ipex)
    with pytest.raises(PlanError, match="not known to train correctly"):
        decide(with_ipex, node=node, ipex=True, ppn=2)
    assert "--use_ipex" in argv(decide(with_ipex, node=node, ipex=True, ppn=2, precision="fp32"))
    with pytest.raises(PlanError, match="recipe 'qa' does not accept --use_ipex"):
        decide(with_ipex, node=node, recipe=replace(plans.QA_RECIPE, ipex=False), ipex=True)
    with pytest.raises(PlanError, match="--ipex applies to recipes only"):
        decide(with_ipex, node=node, recipe=plans.USER_SCRIPT, ipex=True)
    with pytest.raises(PlanError, match="has no IPEX"):
        decide(test_stack, ipex=True)
