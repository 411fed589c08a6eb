"""The RDMA devices of a node, the fabrics that it can use, and the share of each rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from orch_node.protocol import fabrics as protocol
from orch_node.protocol.fabrics import RDMA, Device
from orch_node.standalone import facts as node_facts

from orchestrator.model.process_group import TRANSPORTS
from tests.conftest import make_facts
from tests.support.nodes_with_fabrics import fi_info_output, make_facts_with_fabric, write_sysfs

NO_EFA = {"efa": "no RDMA device of the driver efa"}
NO_MLX = {"mlx": "no RDMA device of the driver mlx5_core"}
LIBRARIES = {"psm3": "libibverbs.so.1", "verbs": "librdmacm.so.1", "efa": "libefa.so.1", "mlx": "libucp.so.0"}
NO_LIBRARIES = {fabric: f"no {library}" for fabric, library in LIBRARIES.items()}


def make_device(name: str, numa: int | None = None) -> Device:
    return Device(name=name, driver="", link="Ethernet", interface="", speed=100_000, numa=numa, active=True)


def test_devices_are_read_from_sysfs(tmp_path: Path) -> None:
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
    (rxe,) = node_facts.rdma_devices(write_sysfs("rxe", tmp_path / "rxe"))
    assert (rxe["driver"], rxe["numa"], rxe["interface"], rxe["speed"]) == ("", None, "eth0", 2500)


def test_fabric_is_available_or_names_what_is_missing(tmp_path: Path) -> None:
    for tree, fi_info, missing in (
        ("e810", "rdma-core", {"psm3": "", "verbs": "", **NO_EFA, **NO_MLX}),
        ("e810", "bare", NO_LIBRARIES),  # E810 without libraries
        ("connectx", "rdma-core", {"psm3": "", "verbs": "", **NO_EFA, "mlx": ""}),
        ("efa", "efa", {"psm3": "", "verbs": "no RDMA device", "efa": "", **NO_MLX}),
        ("rxe", "rdma-core", {"psm3": "", "verbs": "", **NO_EFA, **NO_MLX}),  # soft RoCE
    ):
        fabrics = make_facts_with_fabric(tree, fi_info, tmp_path / tree / fi_info, make_facts()).fabrics
        assert fabrics == {"tcp": "", "shm": "", **missing}


def test_fabric_needs_an_active_port_that_may_be_opened(tmp_path: Path) -> None:
    root = write_sysfs("e810", tmp_path)
    devices = node_facts.rdma_devices(root)
    inactive = [device for device in devices if not device["active"]]
    fabrics = node_facts.fabrics(fi_info_output("rdma-core"), inactive, root)
    assert fabrics["verbs"] == "no active port (irdma-cvl02tf2)"
    for path in (root / "dev/infiniband").iterdir():
        path.unlink()
    assert "uverbs" in node_facts.fabrics(fi_info_output("rdma-core"), devices, root)["psm3"]


# The devices of ranks.


def test_slower_device_is_no_second_rail(tmp_path: Path) -> None:
    devices = make_facts_with_fabric("connectx", "rdma-core", tmp_path, make_facts()).devices
    assert [rail.name for rail in protocol.rails("psm3", devices)] == ["mlx5_0", "mlx5_6"]
    assert protocol.rails("efa", devices) == ()


def test_each_rank_gets_the_devices_near_its_cores() -> None:
    for device_nodes, rank_nodes, shares in (
        ((0, 1), (0, 1), ("a", "b")),  # a rank each
        ((0, 1), (0, 0, 1, 1), ("a", "a", "b", "b")),  # two ranks each
        ((0, 1), (0,), ("a",)),  # one rank on one NUMA node
        ((0, 1), (None,), ("ab",)),  # one rank
        ((0, 1), (None, None), ("a", "b")),  # ranks across NUMA nodes
        ((0, 1), (None, None, None), ("a", "b", "a")),  # more ranks than devices
        ((0, 0), (0,), ("ab",)),  # one rank with two devices
        ((0, 0), (0, 0, 1), ("a", "b", "a")),  # a rank without a device nearby
    ):
        devices = (make_device("a", device_nodes[0]), make_device("b", device_nodes[1]))
        assert protocol.share_devices(devices, rank_nodes) == tuple(tuple(share) for share in shares)


@pytest.mark.parametrize("fabric", RDMA, ids=str)
@pytest.mark.parametrize("transport", TRANSPORTS, ids=str)
def test_variables_of_a_rank_name_its_devices(fabric: str, transport: str) -> None:
    (value,) = protocol.rank_variables(fabric, ("a",), transport).values()
    assert "a" in value
    variables = protocol.rank_variables(fabric, ("a", "b"), transport)
    assert "b" in " ".join(variables.values()) or variables == {"I_MPI_MULTIRAIL": "1"}


def test_psm3_without_devices_uses_sockets() -> None:
    sockets = {"FI_PROVIDER": "psm3", "PSM3_HAL": "sockets", "PSM3_NIC": "eth1"}
    assert protocol.node_variables("psm3", "eth1", ()) == sockets
    variables = protocol.node_variables("psm3", "eth1", (make_device("a"),))
    assert variables == {"FI_PROVIDER": "psm3", "RDMAV_FORK_SAFE": "1"}
