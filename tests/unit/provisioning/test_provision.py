from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from orchestrator import load
from orchestrator.model.limits import GIB, Limits
from orchestrator.provisioning.host_files import has_entries, host_entries
from orchestrator.provisioning.pip import platform_tags
from orchestrator.provisioning.plan import Host, Platform, ProvisionRequest, find_routes, plan_provision
from orchestrator.provisioning.preflight import PACKAGES, find_problems
from orchestrator.provisioning.probe import Missable, Peer, Probe
from orchestrator.provisioning.report import (
    KNOWN_MESSAGES,
    NO_RESPONSE,
    Change,
    NodeReport,
    Report,
    changes_of,
    explain,
    fill_in_host,
    ssh_settings,
)
from orchestrator.provisioning.wheelhouse import exclusive
from orchestrator.report.provision import text
from tests.roles.modules import load_module

STACK = load.stack("current")
LIMITS = {name: Limits() for name in ("node0", "node1")}
ADDRESSES = {"node0": "10.0.0.1", "node1": "10.0.0.2"}


def make_peer(name: str, **changes: Any) -> Peer:
    address = ADDRESSES[name]
    peer = Peer(address=address, source="10.0.0.9", resolves=(address,), error="")
    return replace(peer, **changes)


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
    probe = Probe(
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
        peers={peer: make_peer(peer) for peer in ADDRESSES},
        skew=0.0,
        facts=facts,
    )
    return replace(probe, **changes)


TWO_PROBES = (make_probe("node0"), make_probe("node1"))


def problem_texts(*probes: Probe, may_become: bool = False) -> list[str]:
    problems = find_problems(probes, STACK, limits=LIMITS, sudo_nodes=ADDRESSES if may_become else ())
    return [f"{problem.node}: {problem.text}" for problem in problems]


def test_nodes_without_problems() -> None:
    assert problem_texts(*TWO_PROBES) == []


@pytest.mark.parametrize(
    ("change", "problem"),
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
    ids=["disk", "clock", "Python", "rights", "space in path", "shell characters", "shm", "memory", "CPU", "packages"],
)
def test_problem_of_a_node(change: dict[str, Any], problem: str) -> None:
    (text,) = problem_texts(make_probe(**change))
    assert problem in text


def test_limits_of_the_inventory_replace_the_defaults() -> None:
    probe = make_probe(disk_free=GIB)
    limits = {"node0": Limits(disk=GIB // 2)}
    assert find_problems((probe,), STACK, limits=limits, sudo_nodes=()) == ()


def test_hint_names_the_packages_of_the_distribution() -> None:
    probe = make_probe(missing=("ssh", "libhwloc.so.15"), sudo=False, family="rhel")
    (problem,) = find_problems((probe,), STACK, limits=LIMITS, sudo_nodes=())
    assert "dnf install openssh-clients hwloc-libs" in problem.hint
    assert problem_texts(probe, may_become=True) == []


def test_problem_names_both_nodes_of_a_failed_connection() -> None:
    peers = {"node0": make_peer("node0"), "node1": make_peer("node1", error="Connection refused")}
    (text,) = problem_texts(make_probe("node0", peers=peers), TWO_PROBES[1])
    assert text == "node0: node0 cannot reach node1 (10.0.0.2): Connection refused"


def test_connections_to_unreachable_nodes_are_ignored() -> None:
    peers = {"node0": make_peer("node0"), "node1": make_peer("node1", error="timed out")}
    assert problem_texts(make_probe("node0", peers=peers)) == []


@pytest.mark.parametrize("resolves", [(), ("127.0.1.1",), ("10.0.0.2", "127.0.1.1")], ids=str)
def test_wrong_names_are_a_problem_only_without_root_rights(resolves: tuple[str, ...]) -> None:
    peers = {"node0": make_peer("node0"), "node1": make_peer("node1", resolves=resolves)}
    assert problem_texts(make_probe(peers=peers), TWO_PROBES[1]) == []
    (text,) = problem_texts(make_probe(peers=peers, sudo=False), TWO_PROBES[1])
    assert "the name node1 resolves to" in text


def test_all_nodes_need_the_same_root() -> None:
    texts = problem_texts(TWO_PROBES[0], make_probe("node1", root="/home/other/orch"))
    assert [line.partition(":")[0] for line in texts] == ["node0", "node1"]


def make_plan(*probes: Probe, port: int = 22) -> Any:
    hosts = tuple(Host(name=name, port=port, verified={}) for name in ADDRESSES)
    request = ProvisionRequest(inventory="lab")
    return plan_provision(request, cluster="lab", stack=STACK, hosts=hosts, probes=probes)


def test_known_hosts_contains_the_port() -> None:
    lines = make_plan(*TWO_PROBES).trust["known_hosts"].splitlines()
    assert lines[0] == "node0,10.0.0.1 ssh-ed25519 AAAAnode0"
    ported = make_plan(*TWO_PROBES, port=2222).trust["known_hosts"].splitlines()
    assert ported[1] == "[node1]:2222,[10.0.0.2]:2222 ssh-ed25519 AAAAnode1"


def test_record_contains_the_interface_of_the_address() -> None:
    record = make_plan(*TWO_PROBES).variables["orch_nodes"]["node1"]["record"]
    assert (record["address"], record["interface"]) == ("10.0.0.2", "eth1")
    assert record["venv"] == "/home/trainer/orch/stacks/current"


def test_record_contains_the_routes_to_the_other_nodes() -> None:
    interfaces = {"eth0": ["192.0.2.1"], "eth1": ["10.0.0.1"]}
    peers = {
        "node0": make_peer("node0"),
        "node1": replace(make_peer("node1"), source="192.0.2.1"),
        "node2": replace(make_peer("node1"), source="10.0.0.1"),
        "node3": replace(make_peer("node1"), source="10.0.0.1"),
    }
    probe = make_probe(peers=peers)
    probe = replace(probe, facts={**probe.facts, "interfaces": interfaces})
    assert find_routes(probe) == ("eth1", {"node1": "eth0"})
    assert find_routes(replace(probe, peers={})) == ("", {})


def test_plan_omits_unreachable_nodes() -> None:
    plan = make_plan(TWO_PROBES[0])
    assert list(plan.variables["orch_nodes"]) == ["node0"]


def test_entries_of_etc_hosts_are_complete_without_loopback_addresses() -> None:
    entries = host_entries(TWO_PROBES, ADDRESSES)
    block = "10.0.0.1 node0\n10.0.0.2 node1\n"
    assert not has_entries(make_probe(), entries)
    assert has_entries(make_probe(hosts_file=block), entries)
    assert not has_entries(make_probe(hosts_file="127.0.1.1 node0\n" + block), entries)


def test_platform_tags_include_older_versions_of_glibc() -> None:
    tags = list(platform_tags(Platform(python="3.11", machine="x86_64", libc="2.17")))
    assert tags[0] == "manylinux_2_17_x86_64"
    assert {"manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64"} <= set(tags)
    assert "manylinux_2_28_x86_64" not in tags


def test_messages_of_ssh_are_explained() -> None:
    problem, hint = explain("... WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! ... failed.")
    assert problem == "its host key has changed"
    assert "ssh-keygen -f KNOWN_HOSTS -R HOST" in hint


def test_hints_contain_address_port_user_and_key_of_the_host() -> None:
    variables = {
        "ansible_host": "10.0.0.7",
        "ansible_port": 2222,
        "ansible_user": "train",
        "ansible_ssh_private_key_file": "~/my key",
    }
    hints = {text: fill_in_host(hint, "node1", variables) for text, _, hint in KNOWN_MESSAGES}
    assert "`ssh -i '~/my key' -p 2222 train@10.0.0.7`" in hints["timed out"]
    assert "ssh-keygen -f ~/.ssh/known_hosts -R '[10.0.0.7]:2222'" in hints["REMOTE HOST IDENTIFICATION HAS CHANGED"]
    assert "ssh-keyscan -p 2222 10.0.0.7 >> ~/.ssh/known_hosts," in hints["Host key verification failed"]
    assert not any("HOST" in hint for hint in hints.values())
    assert "`ssh node1`" in fill_in_host(NO_RESPONSE, "node1", {})


def test_hints_about_host_keys_contain_what_the_ssh_configuration_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = f"-o HostName=10.0.0.8 -o Port=2223 -o UserKnownHostsFile={tmp_path}/keys"
    variables = {"ansible_ssh_common_args": arguments}
    hints = {text: fill_in_host(hint, "a", variables, ssh_settings("a", variables)) for text, _, hint in KNOWN_MESSAGES}
    unknown, changed = hints["Host key verification failed"], hints["REMOTE HOST IDENTIFICATION HAS CHANGED"]
    assert f"ssh-keyscan -p 2223 10.0.0.8 >> {tmp_path}/keys, and" in unknown
    assert f"ssh-keygen -f {tmp_path}/keys -R '[10.0.0.8]:2223')" in changed
    assert ssh_settings("a", {"ansible_ssh_common_args": "-o NoSuchOption=1"}) == {}


def test_change_without_details_names_the_task() -> None:
    (change,) = changes_of({}, "Install system packages")
    assert change.what == "install system packages"


def test_report_merges_equal_changes_of_all_nodes() -> None:
    common, single = (Change(what=object_name, is_="missing", should="present") for object_name in ("rank.py", "x"))
    nodes = (NodeReport(node="a", changes=[common, single, common]), NodeReport(node="b", changes=[common]))
    report = Report(cluster="lab", check=True, state="drift", seconds=1.0, log="log", nodes=nodes)
    rows = [line.split() for line in text(report).splitlines() if "missing" in line]
    assert rows == [["all", "rank.py", "missing", "present"], ["a", "x", "missing", "present"]]


def test_report_of_an_unreachable_node_shows_no_changes() -> None:
    nodes = (NodeReport(node="a", failed=1, problem="it does not respond"),)
    report = Report(cluster="lab", check=True, state="failed", seconds=1.0, log="log", nodes=nodes)
    assert "drift" not in text(report)


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("drift", 1), ("failed", 1), ("stopped", 130)])
def test_exit_codes(state: str, code: int) -> None:
    report = Report(cluster="lab", check=False, state=state, seconds=1.0, log="log", nodes=())
    assert report.exit_code == code
    assert "log" in text(report)


def test_exclusive_serializes_processes_with_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    order = []

    def wait() -> None:
        with exclusive("bindings"):
            order.append("second")

    thread = threading.Thread(target=wait)
    with exclusive("bindings"), exclusive("another"):
        thread.start()
        thread.join(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_everything_that_a_probe_can_miss_has_a_package() -> None:
    module = load_module("orch_probe")
    searched = {"ssh", *module.LIBRARIES, *module.RDMA_LIBRARIES, "dockerd"}
    assert searched == set(get_args(Missable)) == set(PACKAGES)
