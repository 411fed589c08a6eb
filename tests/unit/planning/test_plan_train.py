from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Cluster, Facts, Node
from orchestrator.model.recipe import Recipe
from orchestrator.planning.plan import Plan, PutFile, SendFile, StartRun
from orchestrator.planning.request import Resume, TrainRequest
from orchestrator.planning.run_files import master_port
from orchestrator.stacks.stack import Bindings, Stack
from orchestrator.targets.ssh.decisions import Inputs
from orchestrator.targets.ssh.plan import plan_train
from orchestrator.targets.ssh.steps import Site
from tests.conftest import make_cluster, make_facts, make_node

GOLDEN = Path(__file__).parents[2] / "golden"
SITE = Site(
    run_id="20260101-120000-qa-0000",
    run_dir="/runs/qa-0000",
    train="/orch/train",
    train_here="/orch/train",
    claims="/state/claims",
    started_by="me@here",
    created=1.0,
)
REMOTE = replace(SITE, run_id="r", run_dir="/opt/orch/runs/r", train="/opt/orch/train", claims="/opt/orch/claims")
QA = Recipe(
    name="qa",
    script="/orch/train/qa/qa.py",
    resumes=True,
    ipex=True,
    arguments={"epochs": 2},
    precisions={"bf16": ("--bf16",), "fp32": ()},
)
OWN = Recipe(name="own", script="/home/me/own script.py", own_script=True)
REQUEST = TrainRequest(recipe="qa")


@pytest.fixture
def stack(test_stack: Stack) -> Stack:
    return test_stack


def decide(
    stack: Stack,
    *,
    request: TrainRequest = REQUEST,
    recipe: Recipe = QA,
    node: Node | None = None,
    resume: Resume | None = None,
) -> Plan:
    cluster = make_cluster(node or make_node())
    return plan_train(request, Inputs(cluster=cluster, recipe=recipe, stack=stack), SITE, resume)


def argv(plan: Plan) -> tuple[str, ...]:
    (start,) = (step for step in plan.steps if isinstance(step, StartRun))
    return start.command.argv


def test_planning_does_the_same_twice(stack: Stack) -> None:
    assert decide(stack) == decide(stack)


@pytest.mark.parametrize("arguments", [("--ddp_backend", "ccl"), ("--x", "--ddp_backend=ccl")])
def test_a_ddp_backend_that_transformers_no_longer_takes_is_refused(stack: Stack, arguments: tuple[str, ...]) -> None:
    request = replace(REQUEST, script_args=arguments)
    new = replace(stack, requirements={**stack.requirements, "transformers": "5.23.0"})
    with pytest.raises(PlanError, match="--ddp_backend ccl") as caught:
        decide(new, request=request, recipe=OWN)
    assert "Omit it" in str(caught.value.hint)
    assert "transformers" not in stack.requirements
    assert argv(decide(stack, request=request, recipe=OWN))[-1].endswith("ccl")


def test_golden_plan(stack: Stack) -> None:
    expected = (GOLDEN / "local.sh").read_text()
    assert decide(stack, request=replace(REQUEST, ppn=2)).describe() == expected


def test_precision_follows_the_hardware(stack: Stack) -> None:
    assert "--bf16" in argv(decide(stack))
    old = make_node(facts=make_facts(flags=("avx2",)))
    plan = decide(stack, node=old)
    assert "--bf16" not in argv(plan)
    assert plan.run.precision == "fp32"
    assert "precision: fp32 (node0 has no BF16 instructions)" in plan.summary()


def test_an_unknown_precision_names_the_nearest(stack: Stack) -> None:
    with pytest.raises(PlanError, match="no precision 'bf-16'") as caught:
        decide(stack, request=replace(REQUEST, precision="bf-16"))
    assert caught.value.hint == "Did you mean 'bf16'?"


def test_an_own_script_decides_its_precision(stack: Stack) -> None:
    with pytest.raises(PlanError, match="applies to recipes only"):
        decide(stack, recipe=OWN, request=replace(REQUEST, precision="bf16"))
    plan = decide(stack, recipe=OWN, request=replace(REQUEST, script_args=("--x", "$(y)")))
    assert argv(plan)[-3:] == ("/home/me/own script.py", "--x", "$(y)")


def test_resume_keeps_the_output_of_the_unfinished_run(stack: Stack) -> None:
    resume = Resume(run_id="old", state="killed", output_dir="/runs/old/output")
    plan = decide(stack, resume=resume)
    assert "--output_dir=/runs/old/output" in argv(plan)
    assert plan.run.key == decide(stack).run.key
    assert any("carries on old" in line for line in plan.summary())


def test_the_key_depends_on_what_is_trained(stack: Stack) -> None:
    key = decide(stack).run.key
    assert decide(stack, request=replace(REQUEST, ppn=2)).run.key != key
    assert decide(stack, request=replace(REQUEST, precision="fp32")).run.key == key


def test_script_arguments_after_the_dashes_are_part_of_the_key(stack: Stack) -> None:
    with_arguments = replace(REQUEST, script_args=("--learning_rate=1",))
    assert decide(stack, request=with_arguments).run.key != decide(stack).run.key


def test_every_file_of_the_ranks_is_json(stack: Stack) -> None:
    files = {s.path: s.content for s in decide(stack).steps if isinstance(s, PutFile)}
    layout = json.loads(files["/runs/qa-0000/layout.json"])
    assert layout["world_size"] == len(layout["ranks"]) == 1
    environment = json.loads(files["/runs/qa-0000/env.json"])
    assert environment["LD_PRELOAD"] == "/venv/lib/libiomp5.so"
    assert environment["MASTER_PORT"] == str(master_port(SITE.run_id))


def far_node(index: int, facts: Facts | None = None, *, interface: str = "eth1") -> Node:
    """Return a node that is reached over SSH and has a second interface with one address on all nodes."""
    shared = {"lo": ("127.0.0.1",), "docker0": ("172.17.0.1",)}
    return make_node(
        f"node{index}",
        replace(
            facts or make_facts(),
            hostname=f"host{index}",
            interfaces={**shared, interface: (f"10.0.0.{index}",)},
            route=interface,
        ),
        address=f"10.0.0.{index}",
        via=("ssh", "-F", "/state/ssh config", "--", f"node{index}"),
    )


def two_nodes() -> Cluster:
    return make_cluster(far_node(0), far_node(1))


def uneven_nodes() -> Cluster:
    """Return nodes with two NUMA nodes, with one, and with one, fewer cores and another interface name."""
    return make_cluster(
        far_node(0, make_facts(numa=2, cores=4)),
        far_node(1, make_facts(numa=1, cores=4)),
        far_node(2, make_facts(numa=1, cores=3), interface="ens5"),
    )


def test_golden_plan_of_two_nodes(stack: Stack) -> None:
    plan = plan_train(replace(REQUEST, ppn=2), Inputs(cluster=two_nodes(), recipe=QA, stack=stack), REMOTE)
    assert plan.describe() == (GOLDEN / "two-nodes.sh").read_text()


def test_golden_plan_of_uneven_nodes(stack: Stack) -> None:
    plan = plan_train(REQUEST, Inputs(cluster=uneven_nodes(), recipe=QA, stack=stack), REMOTE)
    assert plan.describe() == (GOLDEN / "uneven-nodes.sh").read_text()


def with_spare(spare: Node) -> Cluster:
    cluster = two_nodes()
    selection = replace(cluster.selection, spares=(spare.name,))
    return replace(cluster, nodes=(*cluster.nodes, spare), selection=selection)


def test_a_spare_node_has_the_files_and_no_rank(stack: Stack) -> None:
    request = replace(REQUEST, ppn=1, max_restarts=1, spare_nodes=1)
    plan = plan_train(request, Inputs(cluster=with_spare(far_node(2)), recipe=QA, stack=stack), REMOTE)
    assert "spare nodes: node2 (to replace lost nodes)" in plan.summary()
    (layout,) = (step for step in plan.steps if isinstance(step, PutFile) and "layout" in step.path)
    assert [host_layout.node for host_layout in layout.nodes] == ["node0", "node1", "node2"]
    value = json.loads(layout.content)
    assert value["spares"] == [{"node": "node2", "host": "10.0.0.2"}]
    assert {rank["node"] for rank in value["ranks"]} == {"node0", "node1"}
    assert [node["name"] for node in value["nodes"]] == ["node0", "node1", "node2"]


def test_a_spare_node_must_be_like_the_others_and_needs_restarts(stack: Stack) -> None:
    cases = (
        (far_node(2, make_facts(cores=3)), 1, "node2 cannot be a spare for node0, node1"),
        (far_node(2), 0, "--spare-nodes without --max-restarts"),
    )
    for spare, restarts, message in cases:
        request = replace(REQUEST, spare_nodes=1, max_restarts=restarts)
        with pytest.raises(PlanError, match=message):
            plan_train(request, Inputs(cluster=with_spare(spare), recipe=QA, stack=stack), REMOTE)


def test_a_node_with_too_few_cores_is_refused_with_the_ways_out(stack: Stack) -> None:
    with pytest.raises(PlanError, match="--ppn 4, but node2 has 3 physical cores") as caught:
        plan_train(replace(REQUEST, ppn=4), Inputs(cluster=uneven_nodes(), recipe=QA, stack=stack), REMOTE)
    assert "--ppn auto" in caught.value.hint
    assert "--exclude" in caught.value.hint


def test_the_same_hosts_are_the_same_training_however_they_were_named(stack: Stack) -> None:
    requests = [replace(REQUEST, nodes="1"), replace(REQUEST, nodes="node0"), REQUEST]
    assert len({decide(stack, request=request).run.key for request in requests}) == 1


def test_files_of_this_machine_travel_to_every_node(stack: Stack) -> None:
    plan = plan_train(REQUEST, Inputs(cluster=two_nodes(), recipe=OWN, stack=stack), REMOTE)
    sent = [step for step in plan.steps if isinstance(step, SendFile)]
    assert [node.node for step in sent for node in step.nodes] == ["node0", "node1"]
    assert {step.source for step in sent} == {OWN.script}
    assert argv(plan)[-1] == sent[0].path == "/opt/orch/runs/r/files/0/own script.py"


def test_an_address_on_no_interface_is_refused(stack: Stack) -> None:
    nodes = tuple(replace(node, address="192.0.2.1", facts=replace(node.facts, route="")) for node in two_nodes().nodes)
    with pytest.raises(PlanError, match=r"no interface has the address 192\.0\.2\.1"):
        plan_train(REQUEST, Inputs(cluster=make_cluster(*nodes), recipe=QA, stack=stack), REMOTE)


def test_a_stack_that_is_not_installed_is_named(stack: Stack) -> None:
    facts = replace(make_facts(), packages={"torch": "2.12.0"})
    with pytest.raises(PlanError, match=r"torch is 2.12.0, should be 2.13.0"):
        decide(stack, node=make_node(facts=facts))


def test_a_backend_the_stack_lacks(stack: Stack) -> None:
    with pytest.raises(PlanError, match="--backend nccl"):
        decide(stack, request=replace(REQUEST, backend="nccl"))


CCL = Bindings(version="2.13.0+orch.1", built_by="orch", module="bindings_module", setvars="", oneccl="2022")


def test_ccl_comes_with_its_module_and_without_a_spinning_worker(stack: Stack) -> None:
    two_backends = replace(stack, backends=("ccl", "gloo"), bindings=CCL)
    files = {s.path: s.content for s in decide(two_backends).steps if isinstance(s, PutFile)}
    layout = json.loads(files["/runs/qa-0000/layout.json"])
    assert (layout["backend"], layout["backend_module"]) == ("ccl", "bindings_module")
    environment = json.loads(files["/runs/qa-0000/env.json"])
    assert environment["CCL_WORKER_OFFLOAD"] == "0"
    on_gloo = decide(two_backends, request=replace(REQUEST, backend="gloo"))
    assert on_gloo.run.backend == "gloo"


def test_cores_set_apart_reach_oneccl(stack: Stack) -> None:
    two_backends = replace(stack, backends=("ccl", "gloo"), bindings=CCL)
    plan = decide(two_backends, request=replace(REQUEST, ppn=2, ccl_workers=1))
    files = {s.path: s.content for s in plan.steps if isinstance(s, PutFile)}
    ranks = json.loads(files["/runs/qa-0000/layout.json"])["ranks"]
    assert [rank["cpus"] for rank in ranks] == [[0], [2]]
    assert [rank["env"] for rank in ranks] == [
        {"CCL_WORKER_OFFLOAD": "1", "CCL_WORKER_COUNT": "1", "CCL_WORKER_AFFINITY": "1,3"}
    ] * 2


def test_ipex_is_refused_where_it_is_not_known_to_train(stack: Stack) -> None:
    ipex = {**stack.requirements, "intel-extension-for-pytorch": "2.13.0"}
    facts = replace(make_facts(), packages={"torch": "2.13.0", **ipex})
    node = make_node(facts=facts)
    with_ipex = replace(stack, requirements=ipex)
    request = replace(REQUEST, ipex=True, ppn=2)
    with pytest.raises(PlanError, match="not known to train correctly"):
        decide(with_ipex, node=node, request=request)
    fp32 = decide(with_ipex, node=node, request=replace(request, precision="fp32"))
    assert "--use_ipex" in argv(fp32)
    with pytest.raises(PlanError, match="recipe 'qa' does not accept --use_ipex"):
        decide(with_ipex, node=node, recipe=replace(QA, ipex=False), request=request)
    with pytest.raises(PlanError, match="--ipex applies to recipes only"):
        decide(with_ipex, node=node, recipe=OWN, request=request)
    with pytest.raises(PlanError, match="has no IPEX"):
        decide(stack, request=request)


def test_without_mpiexec_there_is_a_hint(stack: Stack) -> None:
    with pytest.raises(PlanError, match=r"node0 has no Intel MPI for .* \(found: none\)"):
        decide(stack, node=make_node(facts=replace(make_facts(), mpi={})))
