"""Preflight and plan of provisioning: values in, values out."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from orchestrator import load
from orchestrator.model.limits import GIB, Limits
from orchestrator.provisioning.names import has_names, names
from orchestrator.provisioning.plan import Host, Platform, ProvisionRequest, plan_provision, routes
from orchestrator.provisioning.preflight import PACKAGES, problems
from orchestrator.provisioning.probe import Missable, Peer, Probe
from orchestrator.provisioning.report import (
    CAUSES,
    UNANSWERED,
    Change,
    NodeReport,
    Report,
    changes_of,
    explain,
    fill_in_host,
)
from orchestrator.provisioning.wheelhouse import alone, platform_tags
from orchestrator.report.provision import text
from tests.roles.modules import load_module

STACK = load.stack("current")
LIMITS = {name: Limits() for name in ("node0", "node1")}
ADDRESSES = {"node0": "10.0.0.1", "node1": "10.0.0.2"}


def seen(name: str, **changes: Any) -> Peer:
    address = ADDRESSES[name]
    good = Peer(address=address, source="10.0.0.9", resolves=(address,), error="")
    return replace(good, **changes)


def make_probe(name: str = "node0", **changes: Any) -> Probe:
    facts = {
        "hostname": name,
        "packages": {},
        "memory_bytes": 8 * GIB,
        "shm_bytes": GIB,
        "flags": ["avx2", "avx512f", "avx512_bf16"],
        "cpu_model": "a model",
        "interfaces": {"lo": ["127.0.0.1"], "eth1": [ADDRESSES[name]]},
    }
    good = Probe(
        name=name,
        user="trainer",
        uid=1000,
        home="/home/trainer",
        root="/home/trainer/orch",
        machine="x86_64",
        python=(3, 11, 2),
        python_path="/usr/bin/python3",
        libc="2.36",
        family="debian",
        sudo=True,
        writable=True,
        disk_free=50 * GIB,
        missing=(),
        host_keys=("ssh-ed25519 AAAA" + name,),
        hosts_file="127.0.0.1 localhost\n",
        peers={peer: seen(peer) for peer in ADDRESSES},
        skew=0.0,
        facts=facts,
    )
    return replace(good, **changes)


PAIR = (make_probe("node0"), make_probe("node1"))


def texts(*probes: Probe, may_become: bool = False) -> list[str]:
    found = problems(probes, STACK, limits=LIMITS, becoming=ADDRESSES if may_become else ())
    return [f"{problem.node}: {problem.text}" for problem in found]


def test_good_nodes_have_no_problems() -> None:
    assert texts(*PAIR) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"disk_free": GIB}, "1.0 GiB free"),
        ({"skew": -90.0}, "-90 s off"),
        ({"python": (3, 8, 1)}, "Python 3.8.1"),
        ({"writable": False}, "cannot write"),
        ({"root": "/home/two words/orch"}, "/home/two words/orch has ' ' in its name"),
        ({"root": "/opt/$a:b"}, "/opt/$a:b has '$' ':' in its name"),
        ({"facts": {**make_probe().facts, "shm_bytes": 64 << 20}}, "64 MiB free in /dev/shm"),
        ({"facts": {**make_probe().facts, "memory_bytes": GIB}}, "1.0 GiB of memory"),
        ({"facts": {**make_probe().facts, "flags": []}}, "no AVX2"),
        ({"missing": ("ssh",), "sudo": False}, "may not install"),
    ],
)
def test_what_a_node_lacks_is_said(change: dict[str, Any], said: str) -> None:
    (found,) = texts(make_probe(**change))
    assert said in found


def test_a_node_may_be_asked_for_less() -> None:
    probe = make_probe(disk_free=GIB)
    limits = {"node0": Limits(disk=GIB // 2)}
    assert problems((probe,), STACK, limits=limits, becoming=()) == ()


def test_an_administrator_is_told_the_packages_by_their_names() -> None:
    probe = make_probe(missing=("ssh", "libhwloc.so.15"), sudo=False, family="rhel")
    (problem,) = problems((probe,), STACK, limits=LIMITS, becoming=())
    assert "dnf install openssh-clients hwloc-libs" in problem.hint
    assert texts(probe, may_become=True) == []


def test_the_pair_that_does_not_reach_is_named() -> None:
    peers = {"node0": seen("node0"), "node1": seen("node1", error="Connection refused")}
    (found,) = texts(make_probe("node0", peers=peers), PAIR[1])
    assert found == "node0: node0 cannot reach node1 (10.0.0.2): Connection refused"


def test_a_dead_peer_is_no_problem_of_a_pair() -> None:
    peers = {"node0": seen("node0"), "node1": seen("node1", error="timed out")}
    assert texts(make_probe("node0", peers=peers)) == []


@pytest.mark.parametrize("resolves", [(), ("127.0.1.1",), ("10.0.0.2", "127.0.1.1")])
def test_wrong_names_matter_only_where_nobody_may_mend_them(resolves: tuple[str, ...]) -> None:
    peers = {"node0": seen("node0"), "node1": seen("node1", resolves=resolves)}
    assert texts(make_probe(peers=peers), PAIR[1]) == []
    (found,) = texts(make_probe(peers=peers, sudo=False), PAIR[1])
    assert "the name node1 resolves to" in found


def test_roots_must_be_equal() -> None:
    found = texts(PAIR[0], make_probe("node1", root="/home/other/orch"))
    assert [line.partition(":")[0] for line in found] == ["node0", "node1"]


def make_plan(*probes: Probe, port: int = 22) -> Any:
    hosts = tuple(Host(name=name, port=port, verified={}) for name in ADDRESSES)
    request = ProvisionRequest(inventory="lab")
    return plan_provision(request, cluster="lab", stack=STACK, hosts=hosts, probes=probes)


def test_known_hosts_name_the_port() -> None:
    lines = make_plan(*PAIR).trust["known_hosts"].splitlines()
    assert lines[0] == "node0,10.0.0.1 ssh-ed25519 AAAAnode0"
    ported = make_plan(*PAIR, port=2222).trust["known_hosts"].splitlines()
    assert ported[1] == "[node1]:2222,[10.0.0.2]:2222 ssh-ed25519 AAAAnode1"


def test_the_record_holds_the_interface_of_the_address() -> None:
    record = make_plan(*PAIR).variables["orch_nodes"]["node1"]["record"]
    assert (record["address"], record["interface"]) == ("10.0.0.2", "eth1")
    assert record["venv"] == "/home/trainer/orch/stacks/current"


def test_the_record_holds_the_way_to_the_other_nodes() -> None:
    interfaces = {"eth0": ["192.0.2.1"], "eth1": ["10.0.0.1"]}
    peers = {
        "node0": seen("node0"),
        "node1": replace(seen("node1"), source="192.0.2.1"),
        "node2": replace(seen("node1"), source="10.0.0.1"),
        "node3": replace(seen("node1"), source="10.0.0.1"),
    }
    probe = make_probe(peers=peers)
    probe = replace(probe, facts={**probe.facts, "interfaces": interfaces})
    assert routes(probe) == ("eth1", {"node1": "eth0"})
    assert routes(replace(probe, peers={})) == ("", {})


def test_a_dead_node_is_left_out() -> None:
    plan = make_plan(PAIR[0])
    assert list(plan.variables["orch_nodes"]) == ["node0"]


def test_names_are_due_until_they_are_written_and_no_loopback_claims_them() -> None:
    wanted = names(PAIR, ADDRESSES)
    block = "10.0.0.1 node0\n10.0.0.2 node1\n"
    assert not has_names(make_probe(), wanted)
    assert has_names(make_probe(hosts_file=block), wanted)
    assert not has_names(make_probe(hosts_file="127.0.1.1 node0\n" + block), wanted)


def test_wheels_for_older_glibcs_are_taken() -> None:
    tags = list(platform_tags(Platform(python="3.11", machine="x86_64", libc="2.17")))
    assert tags[0] == "manylinux_2_17_x86_64"
    assert {"manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64"} <= set(tags)
    assert "manylinux_2_28_x86_64" not in tags


def test_ssh_words_are_explained() -> None:
    problem, hint = explain("... WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! ... failed.")
    assert problem == "its host key has changed"
    assert "ssh-keygen -R" in hint


def test_hints_name_the_host_with_its_address_user_and_key() -> None:
    variables = {
        "ansible_host": "10.0.0.7",
        "ansible_port": 2222,
        "ansible_user": "train",
        "ansible_ssh_private_key_file": "~/my key",
    }
    hints = {text: fill_in_host(hint, "node1", variables) for text, _, hint in CAUSES}
    assert "`ssh -i '~/my key' -p 2222 train@10.0.0.7`" in hints["timed out"]
    assert "ssh-keygen -R '[10.0.0.7]:2222'" in hints["REMOTE HOST IDENTIFICATION HAS CHANGED"]
    assert "ssh-keyscan -p 2222 10.0.0.7 >>" in hints["Host key verification failed"]
    assert not any("HOST" in hint for hint in hints.values())
    assert "`ssh node1`" in fill_in_host(UNANSWERED, "node1", {})


def test_a_task_without_an_account_is_named_itself() -> None:
    (change,) = changes_of({}, "Install system packages")
    assert change.what == "install system packages"


def test_equal_drift_is_told_once() -> None:
    both, one = (Change(what=what, is_="missing", should="present") for what in ("rank.py", "x"))
    nodes = (NodeReport(node="a", changes=[both, one, both]), NodeReport(node="b", changes=[both]))
    report = Report(cluster="lab", check=True, state="drift", seconds=1.0, log="log", nodes=nodes)
    rows = [line.split() for line in text(report).splitlines() if "missing" in line]
    assert rows == [["all", "rank.py", "missing", "present"], ["a", "x", "missing", "present"]]


def test_of_a_node_that_does_not_answer_no_drift_is_told() -> None:
    nodes = (NodeReport(node="a", failed=1, problem="it does not answer"),)
    report = Report(cluster="lab", check=True, state="failed", seconds=1.0, log="log", nodes=nodes)
    assert "drift" not in text(report)


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("drift", 1), ("failed", 1), ("stopped", 130)])
def test_exit_codes(state: str, code: int) -> None:
    report = Report(cluster="lab", check=False, state=state, seconds=1.0, log="log", nodes=())
    assert report.exit_code == code
    assert "log" in text(report)


def test_two_who_want_the_same_wheels_make_them_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    order = []

    def second() -> None:
        with alone("bindings"):
            order.append("second")

    thread = threading.Thread(target=second)
    with alone("bindings"), alone("another"):
        thread.start()
        thread.join(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_all_that_a_probe_misses_is_a_package_of_both_families() -> None:
    module = load_module("orch_probe")
    looked_for = {*module.PROGRAMS, *module.LIBRARIES, *module.RDMA, "dockerd"}
    assert looked_for == set(get_args(Missable)) == set(PACKAGES)
