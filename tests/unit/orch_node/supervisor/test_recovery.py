"""Replace lost nodes by spare nodes, or continue without them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from unittest import mock

from orch_node.supervisor.supervisor import Supervisor, replace_hosts, resize_command

from tests.support.layouts import make_layout


def test_spare_node_replaces_a_lost_node_in_layout_and_hostfile() -> None:
    spares = {"node8": "10.0.0.8", "node9": "10.0.0.9"}
    layout = make_layout("node0", "node1", "node2", spares=spares)
    stand_ins = {"node1": "node8"}
    hosts = "10.0.0.0:1\n10.0.0.1:1\n10.0.0.2:1\n"
    assert replace_hosts(hosts, layout, stand_ins, {"node2"}) == "10.0.0.0:1\n10.0.0.8:1\n"
    hosts = "10.0.0.0 slots=1\nfe80::1 slots=12\n10.0.0.2 slots=1\n"
    assert replace_hosts(hosts, layout, stand_ins, ()) == hosts.replace("fe80::1", "10.0.0.8")
    result = layout.replace_nodes(stand_ins)
    assert result.node_names == ["node0", "node8", "node2"]
    assert list(result.spares) == ["node9"]
    assert Supervisor.claim_of(mock.Mock(run_dir=Path("/run"), layout=layout), "node9").cpus == (0,)


def test_layout_without_lost_nodes_has_fewer_ranks() -> None:
    layout = make_layout("node0", "node1", "node1", "node2")
    smaller = layout.remove_nodes({"node1"})
    assert [(placement.rank, placement.node) for placement in smaller.ranks] == [(0, "node0"), (1, "node2")]
    assert (smaller.world_size, smaller.planned_size, layout.planned_size) == (2, 4, 4)
    assert smaller.remove_nodes({"node2"}).planned_size == 4
    assert replace_hosts("a:1\nb:2\nc:1\n", layout, {}, {"node1"}) == "a:1\nc:1\n"
    argv = ["mpiexec.hydra", "-f", "hosts", "-n", "4", "-ppn", "1", "python", "x", "-n", "9"]
    assert resize_command(argv, smaller, 4, None) == [*argv[:4], "2", *argv[5:]], "the script's -n stays"
    assert resize_command(argv, smaller, None, 6)[6] == "2"
    assert resize_command(argv, smaller, None, None) == argv, "the launcher reads the layout itself"


def test_run_recovers_with_spare_nodes_first_and_then_without_nodes(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("a slots=1\nb slots=1\nc slots=1\n")
    layout = make_layout("node0", "node1", "node2", spares={"node8": "s"})
    argv = ["accelerate", "--num_processes", "3", "--num_machines", "3", "rank.py", "3"]
    messages: list[str] = []

    def recover(lost: set[str], unreachable: set[str], **changes: Any) -> Any:
        values = {"elastic": True, "keeps_batch": True, "min_nodes": 2, "size_at": 2, "nodes_at": 4, **changes}
        run = mock.Mock(run_dir=tmp_path, layout=layout, launcher_argv=argv, record_news=messages.append)
        run.configure_mock(**{"options": argparse.Namespace(**values), "agents.lost": lost | unreachable})
        return Supervisor.recover(run, lost) or run

    assert recover({"node1", "node2"}, {"node8"}) == "the run needs 2 nodes"
    assert recover({"node0", "node1", "node2"}, {"node8"}, min_nodes=1) == "the run needs 1 node"
    problem = recover({"node1"}, {"node8"}, elastic=False)
    assert problem.startswith("fewer ranks would train with another global batch")
    recovered = recover({"node1", "node2"}, set())
    assert messages == [
        "node8 replaces node1",
        "continues without node2: 2 of 3 ranks; the recipe keeps its global batch, its order of data and its schedule",
    ]
    assert [placement.node for placement in recovered.layout.ranks] == ["node0", "node8"]
    assert recovered.launcher_argv == ["accelerate", "--num_processes", "2", "--num_machines", "2", *argv[5:]]
    assert (tmp_path / "hostfile").read_text() == "a slots=1\ns slots=1\n"
    (tmp_path / "hostfile").unlink()
    assert recover({"node1"}, {"node8"}).layout.world_size == 2, "torchrun has no hostfile"
    assert recover({"node1"}, {"node8"}, keeps_batch=False).layout.world_size == 2
    assert "unless the script uses ORCH_PLANNED_WORLD_SIZE=3" in messages[-1]
