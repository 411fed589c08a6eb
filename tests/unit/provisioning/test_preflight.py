"""Check which problems of nodes are found before anything is installed."""

from __future__ import annotations

from dataclasses import replace

from orchestrator import load
from orchestrator.load.clusters import Limits
from orchestrator.model.cluster import GIB
from orchestrator.provisioning.preflight import Host, find_problems
from orchestrator.provisioning.probe import PREFLIGHT, Probe, Release
from tests.roles.modules import load_module
from tests.support.probes import ADDRESSES, TWO_PROBES, make_peer, make_probe

STACK = load.stack("current")


def problem_texts(*probes: Probe, may_become: bool = False) -> list[str]:
    hosts = {name: Host(port=22, verified={}, may_become=may_become) for name in ADDRESSES}
    problems = find_problems(probes, STACK, hosts)
    return [f"{problem.subject}: {problem.message}" for problem in problems]


def test_problem_of_a_node_is_reported() -> None:
    assert problem_texts(*TWO_PROBES) == []
    for change, problem in (
        ({"disk_free": GIB}, "1.0 GiB free"),
        ({"skew": -90.0}, "-90 s off"),  # clock
        ({"python": [3, 8, 1]}, "Python 3.8.1"),
        ({"writable": False}, "cannot write"),  # rights
        ({"noexec": True}, "is mounted with noexec"),
        ({"root": "/home/two words/orch"}, "/home/two words/orch has ' ' in its name"),  # space
        ({"facts": replace(make_probe().facts, shm_bytes=64 << 20)}, "64 MiB free in /dev/shm"),
        ({"facts": replace(make_probe().facts, memory_bytes=GIB)}, "1.0 GiB of memory"),
        ({"facts": replace(make_probe().facts, flags=frozenset())}, "no AVX2"),  # CPU
        ({"missing": ("ssh",), "sudo": False}, "may not install"),  # packages
        ({"missing": ("ssh",), "os": Release(id="", like="")}, "orch knows the packages of Debian and RHEL only"),
    ):
        (text,) = problem_texts(make_probe(**change))
        assert problem in text
    host = Host(port=22, verified={}, limits=Limits(disk_gb=0.5))  # of the inventory
    assert find_problems((make_probe(disk_free=GIB),), STACK, {"node0": host}) == ()


def test_hint_names_the_packages_of_the_distribution() -> None:
    missing = ("ssh", "libhwloc.so.15", "libtcmalloc_minimal.so.4")
    probe = make_probe(missing=missing, sudo=False, os=Release(id="rhel", like=""))
    (problem,) = find_problems((probe,), STACK, {"node0": Host(port=22, verified={})})
    assert "dnf install openssh-clients hwloc-libs." in problem.hint, "tcmalloc is not in the repositories of RHEL"
    assert problem_texts(probe, may_become=True) == []


def test_problem_names_both_nodes_of_a_failed_connection() -> None:
    peers = {"node0": make_peer("node0"), "node1": make_peer("node1", error="Connection refused")}
    (text,) = problem_texts(make_probe("node0", peers=peers), TWO_PROBES[1])
    assert text == "node0: it cannot reach node1 (10.0.0.2): Connection refused"


def test_names_without_address_are_one_problem_of_all_nodes() -> None:
    peers = {name: make_peer(name, address="", error=f"{name} cannot be resolved") for name in ADDRESSES}
    texts = problem_texts(*(make_probe(name, peers=peers) for name in ADDRESSES))
    assert texts == [f"{name}: it knows no address of node0, node1" for name in ADDRESSES]


def test_wrong_names_are_a_problem_only_without_root_rights() -> None:
    peers = {"node0": make_peer("node0"), "node1": make_peer("node1", resolves=["10.0.0.2", "127.0.1.1"])}
    assert problem_texts(make_probe(peers=peers), TWO_PROBES[1]) == []
    (text,) = problem_texts(make_probe(peers=peers, sudo=False), TWO_PROBES[1])
    assert "the name node1 resolves to" in text


def test_all_nodes_need_the_same_root() -> None:
    texts = problem_texts(TWO_PROBES[0], make_probe("node1", root="/home/other/orch"))
    assert [line.partition(":")[0] for line in texts] == ["node0", "node1"]


def test_everything_that_a_probe_can_miss_has_a_package() -> None:
    module = load_module("orch_probe")
    assert {"ssh", *module.LIBRARIES, *module.RDMA_LIBRARIES} == set(PREFLIGHT["packages"])
