"""The choice of a fabric: the fastest one that was verified, or `--fabric`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from orch_node.protocol.fabrics import Proof

from orchestrator.errors import PlanError
from orchestrator.model.cluster import Link, Node, lay_out
from orchestrator.model.decision import Choice
from orchestrator.model.process_group import CCL, GLOO, TRANSPORTS, Backend
from orchestrator.planning.fabrics import FabricUse, choose_fabric
from orchestrator.planning.resolve import choose_links
from orchestrator.planning.run_files import layout_json
from orchestrator.stacks.stack import Stack
from orchestrator.targets.ssh.plan import plan_train
from tests.conftest import make_cluster, make_facts, make_node
from tests.support.nodes_with_fabrics import make_facts_with_fabric
from tests.support.plans import BINDINGS, GOLDEN, QA_RECIPE, QA_REQUEST, REMOTE_SITE, make_inputs

CCL_OVER_MPI = replace(CCL, env={**TRANSPORTS["mpi"], **CCL.env})
CCL_OVER_OFI = replace(CCL, env={**TRANSPORTS["ofi"], **CCL.env})
TOGETHER = "ab" * 32
PSM3 = Proof(together=TOGETHER, rails=2, gbit=92.34, microseconds=3.2)
TCP = Proof(together=TOGETHER, gbit=20.5, microseconds=25.0)


def make_fabric_node(index: int, folder: Path, tree: str = "e810", fi_info: str = "rdma-core") -> Node:
    """Return a node of two sockets with recorded hardware."""
    base = replace(make_facts(numa=2), interfaces={"eth1": (f"10.0.0.{index}",)})
    facts = make_facts_with_fabric(tree, fi_info, folder / f"node{index}", base)
    return make_node(f"node{index}", facts, address=f"10.0.0.{index}", via=("ssh", "--", f"node{index}"))


@pytest.fixture
def e810(tmp_path: Path) -> tuple[Node, Node]:
    """Return two nodes of two sockets with a 100 Gbit/s port on each and no verified fabric."""
    return make_fabric_node(0, tmp_path), make_fabric_node(1, tmp_path)


def with_proofs(nodes: tuple[Node, ...], **proofs: Proof) -> tuple[Node, ...]:
    """Return the nodes with these results of ping-pongs."""
    return tuple(replace(node, facts=replace(node.facts, proved=proofs)) for node in nodes)


def choose(
    nodes: tuple[Node, ...],
    requested: str | None = None,
    *,
    backend: Backend = CCL_OVER_MPI,
    inventory: str | None = None,
    **use: object,
) -> Choice[tuple[Link, ...]]:
    """Choose the fabric of a run on these nodes."""
    cluster = replace(make_cluster(*nodes), fabric=inventory)
    fabric_use = replace(FabricUse(nodes=nodes, backend=backend), **use)  # type: ignore[arg-type]
    return choose_fabric(choose_links(nodes), cluster, requested, fabric_use)


def describe(choice: Choice[tuple[Link, ...]]) -> str:
    """Return the decision about the fabric, or "" if there is none."""
    return "".join(decision.describe() for decision in choice.decisions if decision.topic == "fabric")


def providers(choice: Choice[tuple[Link, ...]]) -> set[str]:
    return {link.environment()["FI_PROVIDER"] for link in choice.value}


def test_fastest_verified_fabric_is_chosen(e810: tuple[Node, Node]) -> None:
    slower = Proof(together=TOGETHER, rails=2, gbit=80.0, microseconds=4.0)
    choice = choose(with_proofs(e810, psm3=PSM3, verbs=slower, tcp=TCP))
    assert describe(choice) == (
        "fabric: psm3 over irdma-cvl01tf2 and irdma-cvl11tf2 on node0, node1 (the fastest one "
        "that was verified between all nodes: psm3 92.3 Gbit/s and 3.2 us, verbs 80 Gbit/s and 4 us, "
        "tcp 20.5 Gbit/s and 25 us)"
    )
    assert providers(choice) == {"psm3"}
    choice = choose(with_proofs(e810, psm3=replace(PSM3, gbit=9.0), tcp=TCP))
    assert providers(choice) == {"tcp"}
    assert "tcp 20.5 Gbit/s and 25 us, psm3 9 Gbit/s" in describe(choice)


def test_ping_pong_between_other_nodes_or_a_failed_one_does_not_count(e810: tuple[Node, Node]) -> None:
    first, second = with_proofs(e810, psm3=PSM3)
    (second,) = with_proofs((second,), psm3=replace(PSM3, together="cd" * 32))
    assert providers(choose((first, second))) == {"tcp"}
    failed = Proof(together="", failed="no data available")
    assert "psm3: its ping-pong failed: no data available" in describe(choose(with_proofs(e810, psm3=failed)))


def test_each_rank_gets_the_device_near_its_cores(e810: tuple[Node, Node]) -> None:
    def rank_variables(proof: Proof) -> list[dict[str, str]]:
        nodes = with_proofs(e810, psm3=proof)
        layout = json.loads(layout_json(lay_out(nodes, 2), CCL_OVER_MPI, nodes, (), choose(nodes).value))
        return [rank["env"] for rank in layout["ranks"]]

    assert rank_variables(PSM3) == [{"PSM3_NIC": "irdma-cvl01tf2"}, {"PSM3_NIC": "irdma-cvl11tf2"}] * 2
    assert rank_variables(replace(PSM3, rails=1)) == [{"PSM3_NIC": "irdma-cvl01tf2"}] * 4


def test_golden_plan_of_two_nodes_over_psm3(e810: tuple[Node, Node], test_stack: Stack) -> None:
    """Carry the nodes' facts into the ranks' environment and the run record."""
    stack = replace(test_stack, backends=("ccl", "gloo"), bindings=BINDINGS)
    inputs = make_inputs(make_cluster(*with_proofs(e810, psm3=PSM3, tcp=TCP)), QA_RECIPE, stack)
    assert plan_train(QA_REQUEST, inputs, REMOTE_SITE).describe() == (GOLDEN / "two-nodes-psm3.sh").read_text()


def test_requested_fabric_need_not_be_verified(e810: tuple[Node, Node]) -> None:
    assert describe(choose(e810, "verbs")) == (
        "fabric: verbs over irdma-cvl01tf2 and irdma-cvl11tf2 on node0, node1 (requested)"
    )
    assert "orch_fabric of inventory/lab" in describe(choose(e810, inventory="psm3"))
    assert providers(choose(e810, "tcp", inventory="psm3")) == {"tcp"}
    assert describe(choose(e810, "tcp")) == "fabric: tcp (requested)"


def test_unavailable_fabric_is_refused_with_the_reason_of_each_node(tmp_path: Path) -> None:
    nodes = (make_fabric_node(0, tmp_path), make_fabric_node(1, tmp_path, fi_info="bare"))  # without RDMA's libraries
    for fabric, message, hint in (
        ("efa", "--fabric efa: node0: no RDMA device of the driver efa; node1: no libefa.so.1.", ""),
        ("verbs", "--fabric verbs: node1: no librdmacm.so.1.", "names the packages"),  # no library
        ("shm", "--fabric shm: node0, node1 do not share memory.", ""),  # two machines
        ("psm", "There is no fabric 'psm' (requested).", ""),  # unknown
    ):
        with pytest.raises(PlanError) as exc_info:
            choose(nodes, fabric)
        assert exc_info.value.message == message
        assert hint in exc_info.value.hint
    fabrics = {"verbs": "no libfabric in the stack (fi_info)"}  # no package of the system has it
    node = replace(nodes[0], facts=replace(nodes[0].facts, fabrics=fabrics))
    with pytest.raises(PlanError, match="no libfabric") as exc_info:
        choose((node,), "verbs")
    assert "names the packages" not in exc_info.value.hint


def test_fabric_is_refused_if_the_backend_or_container_cannot_use_it(e810: tuple[Node, Node]) -> None:
    with pytest.raises(PlanError, match="only --backend ccl uses fabrics, not gloo"):
        choose(e810, "psm3", backend=GLOO)
    with pytest.raises(PlanError, match="containers lack the devices"):
        choose(e810, "psm3", contained=True)
    with pytest.raises(PlanError, match="has no such provider"):
        choose(e810[:1], "shm", backend=CCL_OVER_OFI)
    assert choose(with_proofs(e810, psm3=PSM3), backend=GLOO) == choose_links(e810)


def test_spare_node_must_have_the_same_devices(tmp_path: Path) -> None:
    nodes = (make_fabric_node(0, tmp_path), make_fabric_node(1, tmp_path, tree="connectx"))
    assert providers(choose(nodes, "psm3")) == {"psm3"}
    with pytest.raises(PlanError, match="node1 cannot replace a node"):
        choose(nodes, "psm3", spares=1)


def test_one_node_uses_a_fabric_only_if_requested(e810: tuple[Node, Node]) -> None:
    assert choose(e810[:1]).value == ()
    (link,) = choose(e810[:1], "shm").value
    assert (link.interface, link.environment()["FI_PROVIDER"]) == ("lo", "shm")
