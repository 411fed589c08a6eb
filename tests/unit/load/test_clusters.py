"""Read hostfiles, the variables of an inventory that hosts share, and the facts of this machine."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.errors import RequestError
from orchestrator.load.clusters import Limits, local_node, mpi_implementations
from orchestrator.load.hostfile import load_hostfile, parse_hostfile
from orchestrator.operations import train
from orchestrator.planning.request import TrainRequest, parse_nodes


def test_limits_of_the_inventory_replace_the_defaults() -> None:
    limits = load.limits("a", {"orch_limits": {"disk_gb": 1, "skew_seconds": "60"}})
    assert limits == Limits(disk_gb=1.0, skew_seconds=60.0)
    assert load.limits("a", {}) == Limits()


def test_nodes_of_an_array_limit_where_its_runs_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv)\n")
    hosts = {key: {"ansible_connection": "local"} for key in ("n1", "n2", "n3", "n4")}
    (tmp_path / "lab.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    request = TrainRequest(
        recipe=str(tmp_path / "train.py"),
        inventory=str(tmp_path / "lab.yml"),
        nodes=parse_nodes("n[1-3]"),
        exclude="n2",
    )
    planned = train.plan(replace(request, ppn=1, array=("lr=1,2",), project="none"))
    assert [run.layout.world_size for run in planned.array] == [1, 1]
    recorded = planned.array[1].request
    assert (str(recorded.nodes), recorded.exclude) == ("1", "n2,n4")


def test_all_hosts_need_the_same_mpi_implementations() -> None:
    assert mpi_implementations({"a": {"orch_mpi": ["openmpi", "intel"]}}) == ("openmpi", "intel")
    with pytest.raises(RequestError, match=r"differs .*a: mpich; b: none"):
        mpi_implementations({"a": {"orch_mpi": "mpich"}, "b": {}})
    with pytest.raises(RequestError, match="unknown orch_mpi 'mpic'"):
        mpi_implementations({"a": {"orch_mpi": "mpic"}})


def test_missing_stack_of_this_machine_is_installed_by_setup() -> None:
    stacks = ("current", "torch-2.11")
    assert [local_node("node0", {}, stack).repair for stack in stacks] == [
        "`orch setup`",
        "`orch setup --stack torch-2.11`",
    ]


def test_hostfile_has_each_host_once() -> None:
    for text, hosts, slots in (
        ("node1:4\nnode2:4  # rack 2\n\n", ["node1", "node2"], {4}),  # mpich
        ("node1 slots=4 max_slots=8\n# node3 slots=4\nnode2 slots=2\n", ["node1", "node2"], {2, 4}),  # openmpi
        ("10.0.0.1 slots=2 username=al\nbob@10.0.0.2\nfd00::3\n", ["al@10.0.0.1", "bob@10.0.0.2", "fd00::3"], {1, 2}),
        ("node[1-3,7],gpu01\n", ["node[1-3,7]", "gpu01"], {1}),  # slurm
        ("[fe80::2]:4\n[fe80::3] slots=4\n", ["fe80::2", "fe80::3"], {4}),  # brackets
        ("n1\nn1\nn2\n", ["n1", "n2"], {1, 2}),  # pbs
        ("n1 4 all.q@n1 UNDEFINED\nn2 4 all.q@n2 <NULL>\n", ["n1", "n2"], {4}),  # grid-engine
    ):
        result = parse_hostfile(text, "hostfile")
        assert (list(result), {*result.values()}) == (hosts, slots)


def test_standard_input_may_be_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, sender = socket.socketpair()
    with receiver, receiver.makefile() as stdin, sender:
        sender.sendall(b"node1:4\nnode2\n")
        sender.shutdown(socket.SHUT_WR)
        monkeypatch.setattr("sys.stdin", stdin)
        assert load_hostfile(Path("-")) == {"node1": 4, "node2": 1}


def test_line_of_another_format_is_named() -> None:
    for text, message in (
        ("# hosts\nall:\n  hosts:\n", "line 2: this looks like an Ansible inventory"),  # yaml
        ("Host node1\n  User alice\n", "looks like an SSH configuration"),
        ("127.0.0.1 localhost\n", "looks like a file such as /etc/hosts"),
        ("hostA 4 hostB 4\n", "line 1: unexpected '4' after the host"),  # lsf
        ("n1 ansible_host=10.0.0.1\n", "looks like an Ansible inventory"),
        ("n1 slots=2\nn2 slot=4\n", "line 2: unknown setting 'slot=4'"),
        ("node1:2222\n", "'2222' is not a number of slots"),  # port
    ):
        with pytest.raises(RequestError, match=re.escape(message)):
            parse_hostfile(text, "hostfile")
