"""The fabrics of a node and the choice of `--fabric`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from orch_node.protocol import fabrics as protocol
from orch_node.protocol.fabrics import RDMA, Device, Proof
from orch_node.standalone import facts as node_facts

from orchestrator.errors import PlanError, RequestError
from orchestrator.load.facts import NodeRecord, read_record, record_json, validate
from orchestrator.load.run_variables import requested_fabric
from orchestrator.model.cluster import Node
from orchestrator.model.decision import Choice
from orchestrator.model.layout import lay_out as ranks_on
from orchestrator.model.links import Link
from orchestrator.model.process_group import CCL, GLOO, TRANSPORTS, Backend
from orchestrator.operations import nodes
from orchestrator.planning.fabrics import FabricUse, choose_fabric
from orchestrator.planning.hosts import choose_links
from orchestrator.planning.run_files import layout_json
from orchestrator.stacks.stack import Stack
from orchestrator.targets.ssh.decisions import Inputs
from orchestrator.targets.ssh.plan import plan_train
from tests.conftest import make_cluster, make_facts, make_node
from tests.support.nodes_with_fabrics import fi_info_output, make_facts_with_fabric, write_sysfs
from tests.unit.planning.test_plan_train import CCL as BINDINGS
from tests.unit.planning.test_plan_train import GOLDEN, QA, REMOTE, REQUEST

OVER_MPI = replace(CCL, env=(*TRANSPORTS["mpi"], *CCL.env))
OVER_OFI = replace(CCL, env=(*TRANSPORTS["ofi"], *CCL.env))


def test_the_devices_of_a_node(tmp_path: Path) -> None:
    devices = node_facts.rdma_devices(write_sysfs("e810", tmp_path))
    assert [tuple(device.values()) for device in devices] == [
        ("irdma-cvl01tf2", "ice", "Ethernet", "ens801f0", 100_000, 0, True),
        ("irdma-cvl02tf2", "ice", "Ethernet", "ens801f1", 100_000, 0, False),
        ("irdma-cvl11tf2", "ice", "Ethernet", "ens802f0", 100_000, 1, True),
    ]
    assert node_facts.nics(tmp_path) == {
        "ens801f0": {"speed": 100_000, "numa": 0},
        "ens801f1": {"speed": 0, "numa": 0},
        "ens802f0": {"speed": 100_000, "numa": 1},
    }


def test_soft_roce_has_neither_driver_nor_numa_node(tmp_path: Path) -> None:
    (rxe,) = node_facts.rdma_devices(write_sysfs("rxe", tmp_path))
    assert (rxe["driver"], rxe["numa"], rxe["interface"], rxe["speed"]) == ("", None, "eth0", 2500)


@pytest.mark.parametrize(
    ("tree", "fi_info", "missing"),
    [
        (
            "e810",
            "rdma-core",
            {
                "psm3": "",
                "verbs": "",
                "efa": "no RDMA device of the driver efa",
                "mlx": "no RDMA device of the driver mlx5_core",
            },
        ),
        (
            "e810",
            "bare",
            {
                "psm3": "no libibverbs.so.1",
                "verbs": "no librdmacm.so.1",
                "efa": "no libefa.so.1",
                "mlx": "no libucp.so.0",
            },
        ),
        ("connectx", "rdma-core", {"psm3": "", "verbs": "", "efa": "no RDMA device of the driver efa", "mlx": ""}),
        (
            "efa",
            "efa",
            {"psm3": "", "verbs": "no RDMA device", "efa": "", "mlx": "no RDMA device of the driver mlx5_core"},
        ),
        (
            "rxe",
            "rdma-core",
            {
                "psm3": "",
                "verbs": "",
                "efa": "no RDMA device of the driver efa",
                "mlx": "no RDMA device of the driver mlx5_core",
            },
        ),
    ],
)
def test_what_is_missing(tree: str, fi_info: str, missing: Mapping[str, str], tmp_path: Path) -> None:
    result = make_facts_with_fabric(tree, fi_info, tmp_path, make_facts()).fabrics
    assert result == {"tcp": "", "shm": "", **missing}


def test_a_port_without_a_link_and_a_device_that_may_not_be_opened(tmp_path: Path) -> None:
    root = write_sysfs("e810", tmp_path)
    devices = node_facts.rdma_devices(root)
    down = [entry for entry in devices if not entry["active"]]
    fabrics = node_facts.fabrics(fi_info_output("rdma-core"), down, root)
    assert fabrics["verbs"] == "no active port (irdma-cvl02tf2)"
    for path in (root / "dev/infiniband").iterdir():
        path.unlink()
    assert "uverbs" in node_facts.fabrics(fi_info_output("rdma-core"), devices, root)["psm3"]


def test_there_is_no_fabric_without_libfabric(tmp_path: Path) -> None:
    assert node_facts.fi_info(tmp_path) == ""
    fabrics = node_facts.fabrics("", [])
    assert set(fabrics) == set(protocol.FABRICS)
    assert set(fabrics.values()) == {"no libfabric in the stack (fi_info)"}


def test_a_program_that_is_no_fi_info_is_left(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "libfabric" / "fi_info"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"\x7fELF and no more")
    os.chmod(program, 0o755)
    assert node_facts.fi_info(tmp_path) == ""


OLD = {
    "hostname": "host",
    "python": "3.11.2",
    "cpu_model": "a model",
    "flags": [],
    "cpus": [{"cpu": 0, "core": 0, "socket": 0, "numa": 0}],
    "memory_bytes": 1,
    "shm_bytes": 1,
    "libraries": {},
    "interfaces": {},
    "packages": {},
}


def test_records_of_before_load() -> None:
    record = validate(NodeRecord, OLD, "")
    assert (record.devices, record.fabrics, record.proved) == ([], {}, {})
    assert nodes.row("node0", record)["fabrics"] == "-"


def test_a_device_near_no_numa_node_is_read_again_as_it_was_written(tmp_path: Path) -> None:
    devices = node_facts.rdma_devices(write_sysfs("rxe", tmp_path))
    hardware = {"devices": devices, "nics": {"eth0": {"speed": 25_000, "numa": None}}}
    (tmp_path / "record.json").write_text(record_json(OLD | hardware, "node0"))
    record = read_record(tmp_path / "record.json")
    assert record == validate(NodeRecord, OLD | hardware, "")


def test_nodes_are_shown_with_what_they_have_and_what_was_measured() -> None:
    proof = {"together": "ab" * 32, "rails": 2, "gbit": 92.34, "microseconds": 3.2, "failed": ""}
    hardware = {
        "fabrics": {"tcp": "", "psm3": "", "verbs": "no librdmacm.so.1"},
        "proved": {"psm3": proof},
        "nics": {"eth0": {"speed": 25_000, "numa": None}},
    }
    row = nodes.row("node0", validate(NodeRecord, OLD | hardware, ""))
    assert row["fabrics"] == "tcp, psm3 (92.3 Gbit/s)"
    assert row["missing"] == {"verbs": "no librdmacm.so.1"}
    assert row["nics"] == hardware["nics"]


def device(name: str, numa: int | None = None, speed: int = 100_000, link: str = "Ethernet") -> Device:
    return Device(name=name, driver="", link=link, interface="", speed=speed, numa=numa, active=True)


def test_a_slower_network_is_no_second_rail(tmp_path: Path) -> None:
    devices = make_facts_with_fabric("connectx", "rdma-core", tmp_path, make_facts()).devices
    assert [rail.name for rail in protocol.rails("psm3", devices)] == ["mlx5_0", "mlx5_6"]
    assert protocol.rails("efa", devices) == ()


@pytest.mark.parametrize(
    ("numa", "shares"),
    [
        ((0, 1), (("a",), ("b",))),
        ((0, 0, 1, 1), (("a",), ("a",), ("b",), ("b",))),
        ((0,), (("a",),)),
        ((None,), (("a", "b"),)),
        ((None, None), (("a",), ("b",))),
        ((None, None, None), (("a",), ("b",), ("a",))),
    ],
)
def test_each_rank_is_near_its_devices(numa: tuple[int | None, ...], shares: tuple[tuple[str, ...], ...]) -> None:
    assert protocol.share_devices((device("a", 0), device("b", 1)), numa) == shares


def test_two_devices_on_one_numa_node_are_dealt_out() -> None:
    devices = (device("a", 0), device("b", 0))
    assert protocol.share_devices(devices, (0,)) == (("a", "b"),)
    assert protocol.share_devices(devices, (0, 0, 1)) == (("a",), ("b",), ("a",))


@pytest.mark.parametrize("fabric", RDMA)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_fabric_is_told_its_devices(fabric: str, transport: str) -> None:
    variables = protocol.rank_variables(fabric, ("a",), transport)
    two = protocol.rank_variables(fabric, ("a", "b"), transport)
    (value,) = variables.values()
    assert "a" in value
    assert "b" in " ".join(two.values()) or two == {"I_MPI_MULTIRAIL": "1"}


def test_psm3_without_devices_runs_over_sockets() -> None:
    assert protocol.node_variables("psm3", "eth1", ()) == {
        "FI_PROVIDER": "psm3",
        "PSM3_HAL": "sockets",
        "PSM3_NIC": "eth1",
    }
    assert protocol.node_variables("psm3", "eth1", (device("a"),)) == {"FI_PROVIDER": "psm3", "RDMAV_FORK_SAFE": "1"}


@pytest.fixture
def e810(tmp_path: Path) -> tuple[Node, Node]:
    """Return two nodes of two sockets with a 100 Gbit/s port on each and no verified fabric."""
    return node(0, "e810", "rdma-core", tmp_path), node(1, "e810", "rdma-core", tmp_path)


def node(index: int, tree: str, fi_info: str, folder: Path) -> Node:
    base = replace(make_facts(numa=2), interfaces={"eth1": (f"10.0.0.{index}",)})
    facts = make_facts_with_fabric(tree, fi_info, folder / f"node{index}", base)
    return make_node(f"node{index}", facts, address=f"10.0.0.{index}", via=("ssh", "--", f"node{index}"))


def proved(nodes: tuple[Node, ...], **proofs: Proof) -> tuple[Node, ...]:
    return tuple(replace(node, facts=replace(node.facts, proved=proofs)) for node in nodes)


def chosen(
    nodes: tuple[Node, ...],
    requested: str | None = None,
    *,
    backend: Backend = OVER_MPI,
    inventory: str | None = None,
    **over: object,
) -> Choice[tuple[Link, ...]]:
    cluster = replace(make_cluster(*nodes), fabric=inventory)
    use = replace(FabricUse(nodes=nodes, backend=backend), **over)  # type: ignore[arg-type]
    return choose_fabric(choose_links(nodes), cluster, requested, use)


def lines(choice: Choice[tuple[Link, ...]]) -> list[str]:
    return [decision.describe() for decision in choice.decisions if decision.topic == "fabric"]


def environments(choice: Choice[tuple[Link, ...]]) -> set[str]:
    return {link.environment()["FI_PROVIDER"] for link in choice.value}


TOGETHER = "ab" * 32
PSM3 = Proof(together=TOGETHER, rails=2, gbit=92.34, microseconds=3.2)
TCP = Proof(together=TOGETHER, gbit=20.5, microseconds=25.0)


def test_nodes_without_devices_have_no_choice(tmp_path: Path) -> None:
    nodes = tuple(
        make_node(
            f"node{index}", replace(make_facts(), interfaces={"eth1": (f"10.0.0.{index}",)}), address=f"10.0.0.{index}"
        )
        for index in range(2)
    )
    assert chosen(nodes) == choose_links(nodes) == chosen(nodes, "auto")


def test_nothing_is_taken_that_was_not_proved(e810: tuple[Node, Node]) -> None:
    choice = chosen(e810)
    assert environments(choice) == {"tcp"}
    assert not any(link.devices for link in choice.value)
    assert lines(choice) == [
        "fabric: tcp (psm3: no ping-pong between all of these nodes is recorded; verbs: no "
        "ping-pong between all of these nodes is recorded)"
    ]


def test_the_fastest_that_was_proved_is_taken(e810: tuple[Node, Node]) -> None:
    slower = Proof(together=TOGETHER, rails=2, gbit=80.0, microseconds=4.0)
    choice = chosen(proved(e810, psm3=PSM3, verbs=slower, tcp=TCP))
    assert lines(choice) == [
        "fabric: psm3 over irdma-cvl01tf2 and irdma-cvl11tf2 on node0, node1 (the fastest one "
        "that was verified between all nodes: psm3 92.3 Gbit/s and 3.2 us, verbs 80 Gbit/s and 4 us, "
        "tcp 20.5 Gbit/s and 25 us)"
    ]
    assert environments(choice) == {"psm3"}


def test_tcp_is_taken_where_it_was_faster(e810: tuple[Node, Node]) -> None:
    choice = chosen(proved(e810, psm3=replace(PSM3, gbit=9.0), tcp=TCP))
    assert environments(choice) == {"tcp"}
    assert "tcp 20.5 Gbit/s and 25 us, psm3 9 Gbit/s" in lines(choice)[0]


def test_a_ping_pong_of_others_proves_nothing(e810: tuple[Node, Node]) -> None:
    first, second = proved(e810, psm3=PSM3)
    foreign_proof = replace(PSM3, together="cd" * 32)
    second = replace(second, facts=replace(second.facts, proved={"psm3": foreign_proof}))
    assert environments(chosen((first, second))) == {"tcp"}
    failed = Proof(together="", failed="no data available")
    reasons = lines(chosen(proved(e810, psm3=failed)))
    assert "psm3: its ping-pong failed: no data available" in reasons[0]


def test_one_node_without_it_takes_it_from_all(tmp_path: Path) -> None:
    nodes = proved((node(0, "e810", "rdma-core", tmp_path), node(1, "e810", "bare", tmp_path)), psm3=PSM3)
    choice = chosen(nodes)
    assert environments(choice) == {"tcp"}
    assert "psm3: node1: no libibverbs.so.1" in lines(choice)[0]


def test_each_rank_gets_the_device_near_its_cores(e810: tuple[Node, Node]) -> None:
    nodes = proved(e810, psm3=PSM3)
    links = chosen(nodes).value
    written = json.loads(layout_json(ranks_on(nodes, 2), OVER_MPI, nodes, (), links))
    assert [rank["env"] for rank in written["ranks"]] == [
        {"PSM3_NIC": "irdma-cvl01tf2"},
        {"PSM3_NIC": "irdma-cvl11tf2"},
    ] * 2
    one_rail = proved(e810, psm3=replace(PSM3, rails=1))
    written = json.loads(layout_json(ranks_on(nodes, 2), OVER_MPI, nodes, (), chosen(one_rail).value))
    assert {rank["env"]["PSM3_NIC"] for rank in written["ranks"]} == {"irdma-cvl01tf2"}


def test_golden_plan_of_two_nodes_over_psm3(e810: tuple[Node, Node], test_stack: Stack) -> None:
    """Carry the nodes' facts into the ranks' environment and the run record."""
    stack = replace(test_stack, backends=("ccl", "gloo"), bindings=BINDINGS)
    inputs = Inputs(cluster=make_cluster(*proved(e810, psm3=PSM3, tcp=TCP)), recipe=QA, stack=stack)
    plan = plan_train(REQUEST, inputs, REMOTE)
    assert plan.describe() == (GOLDEN / "two-nodes-psm3.sh").read_text()


def test_a_fabric_that_is_asked_for_needs_no_proof(e810: tuple[Node, Node]) -> None:
    assert lines(chosen(e810, "verbs")) == [
        "fabric: verbs over irdma-cvl01tf2 and irdma-cvl11tf2 on node0, node1 (requested)"
    ]
    said_by_inventory = chosen(e810, inventory="psm3")
    assert "orch_fabric of inventory/lab" in lines(said_by_inventory)[0]
    assert environments(chosen(e810, "tcp", inventory="psm3")) == {"tcp"}
    assert lines(chosen(e810, "tcp")) == ["fabric: tcp (requested)"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("efa", "--fabric efa: node0: no RDMA device of the driver efa; node1: no libefa.so.1."),
        ("verbs", "--fabric verbs: node1: no librdmacm.so.1."),
        ("shm", "--fabric shm: node0, node1 do not share memory."),
        ("psm", "There is no fabric 'psm' (requested)."),
    ],
)
def test_what_nodes_lack_is_refused_by_their_names(asked: str, words: str, tmp_path: Path) -> None:
    nodes = (node(0, "e810", "rdma-core", tmp_path), node(1, "e810", "bare", tmp_path))
    with pytest.raises(PlanError) as caught:
        chosen(nodes, asked)
    assert caught.value.message == words
    if asked == "verbs":
        assert "apt-get install librdmacm1" in caught.value.hint


def test_what_cannot_carry_a_fabric_refuses_it(e810: tuple[Node, Node]) -> None:
    with pytest.raises(PlanError, match="only --backend ccl uses fabrics, not gloo"):
        chosen(e810, "psm3", backend=GLOO)
    with pytest.raises(PlanError, match="containers lack the devices"):
        chosen(e810, "psm3", contained=True)
    with pytest.raises(PlanError, match="has no such provider"):
        chosen(e810[:1], "shm", backend=OVER_OFI)
    assert chosen(proved(e810, psm3=PSM3), backend=GLOO) == choose_links(e810)


def test_nodes_that_were_provisioned_before_are_told_so() -> None:
    facts = replace(make_facts(), interfaces={"eth1": ("10.0.0.1",)})
    old = make_node("node0", facts, address="10.0.0.1")
    with pytest.raises(PlanError, match="node0: not checked yet") as caught:
        chosen((old,), "psm3")
    assert "orch provision" in caught.value.hint


def test_a_spare_with_other_devices_could_not_stand_in(tmp_path: Path) -> None:
    nodes = (node(0, "e810", "rdma-core", tmp_path), node(1, "connectx", "rdma-core", tmp_path))
    assert environments(chosen(nodes, "psm3")) == {"psm3"}
    with pytest.raises(PlanError, match="node1 cannot replace a node"):
        chosen(nodes, "psm3", spares=1)


def test_one_machine_alone_is_left_as_it_is_unless_asked(e810: tuple[Node, Node]) -> None:
    one_node = e810[:1]
    assert chosen(one_node).value == ()
    (link,) = chosen(one_node, "shm").value
    assert (link.interface, link.environment()["FI_PROVIDER"]) == ("lo", "shm")


def test_hosts_of_a_run_agree_on_it() -> None:
    assert requested_fabric({"a": {"orch_fabric": "psm3"}, "b": {"orch_fabric": "psm3"}}) == "psm3"
    assert requested_fabric({"a": {}, "b": {}}) is None
    with pytest.raises(RequestError, match="a: psm3, b: none"):
        requested_fabric({"a": {"orch_fabric": "psm3"}, "b": {}})
