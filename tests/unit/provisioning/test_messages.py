"""Check how changes and failures of nodes are reported, and explained with a hint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.model.decision import Finding
from orchestrator.model.provision_report import Change, NodeReport, Report
from orchestrator.provisioning.messages import KNOWN_MESSAGES, NO_RESPONSE, explain, fill_in_host, ssh_settings
from orchestrator.report.provision import as_json, text


def test_messages_of_ssh_are_explained() -> None:
    problem, hint = explain("... WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! ... failed.")
    assert problem == "its host key has changed"
    assert "ssh-keygen -f KNOWN_HOSTS -R HOST" in hint
    cut_off = "Task failed: Data could not be sent to remote host '10.0.0.7'. [...]: [Errno 32] Broken pipe"
    assert explain(cut_off)[0] == "it does not respond"


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
    unknown_key, changed_key = hints["Host key verification failed"], hints["REMOTE HOST IDENTIFICATION HAS CHANGED"]
    assert f"ssh-keyscan -p 2223 10.0.0.8 >> {tmp_path}/keys, and" in unknown_key
    assert f"ssh-keygen -f {tmp_path}/keys -R '[10.0.0.8]:2223')" in changed_key
    assert ssh_settings("a", {"ansible_ssh_common_args": "-o NoSuchOption=1"}) == {}


def test_report_merges_equal_changes_of_all_nodes() -> None:
    common, single = (Change(what=object_name, is_="missing", should="present") for object_name in ("rank.py", "x"))
    nodes = (NodeReport(node="a", changes=[common, single, common]), NodeReport(node="b", changes=[common]))
    report = Report(cluster="lab", check=True, state="drift", seconds=1.0, log="log", nodes=nodes)
    rows = [line.split() for line in text(report).splitlines() if "missing" in line]
    assert rows == [["all", "rank.py", "missing", "present"], ["a", "x", "missing", "present"]]


def test_report_prints_a_problem_once_with_all_its_nodes_and_the_cure() -> None:
    nodes = tuple(NodeReport(node=name) for name in ("a", "b", "c"))
    for node in nodes[:2]:
        node.fail(Finding(subject=node.node, message="1.0 GiB free", hint="Free some space."))
        node.fail(Finding(subject=node.node, message="no AVX2"))
    nodes[2].findings.append(Finding(subject="c", severity="absent", message="not changed"))
    report = Report(cluster="lab", check=False, state="failed", seconds=1.0, log="log", nodes=nodes)
    assert text(report).splitlines()[4:8] == [
        "MISS  a, b: 1.0 GiB free",
        "      hint: Free some space.",
        "MISS  a, b: no AVX2",
        "-     c: not changed",
    ]
    first, _, last = json.loads(as_json(report))["nodes"]
    assert (first["failed"], first["problem"], first["hint"]) == (2, "1.0 GiB free; no AVX2", "Free some space.")
    assert (last["failed"], last["problem"], last["hint"]) == (0, "not changed", "")
    assert "findings" not in first


def test_exit_code_follows_the_state() -> None:
    for state, code in (("done", 0), ("drift", 1), ("failed", 1), ("stopped", 130)):
        report = Report(cluster="lab", check=False, state=state, seconds=1.0, log="log", nodes=())
        assert report.exit_code == code
        assert "log" in text(report)
