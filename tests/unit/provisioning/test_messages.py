"""Check how changes and failures of nodes are reported, and explained with a hint."""

from __future__ import annotations

import json

from orchestrator.model.decision import Finding
from orchestrator.model.provision_report import NodeReport, Report
from orchestrator.provisioning.messages import KNOWN_MESSAGES, explain, fill_in_host
from orchestrator.report.provision import as_json, text


def test_messages_of_ssh_are_explained() -> None:
    problem, hint = explain("... WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! ... failed.")
    assert problem == "its host key has changed"
    assert "ssh-keygen -f KNOWN_HOSTS -R HOST" in hint
    cut_off = "Task failed: Data could not be sent to remote host '10.0.0.7'. [...]: [Errno 32] Broken pipe"
    assert explain(cut_off)[0] == "it does not respond"
    shim = (
        "Module result deserialization failed: No start of json char found\npyenv: python3.13: command not found\n\n..."
    )
    assert "pyenv has not selected" in explain(shim)[0]
    for error in (
        "SyntaxError: future feature annotations is not defined",
        "ansible-core requires a minimum of Python",
    ):
        assert explain(f"Module result deserialization failed: {error}")[0] == "its Python is too old"
    refused = "alice@10.0.0.2: Permission denied (publickey)."
    problem, hint = explain(f"[mpiexec@n1] Error: Unable to run bstrap_proxy on 10.0.0.2 (pid 7)\n{refused}")
    assert problem == f"it cannot start programs on 10.0.0.2 over SSH: {refused}"
    assert "authorized_keys" in hint
    assert "!requiretty" in explain("sudo: sorry, you must have a tty to run sudo\n")[1]
    closed = "kex_exchange_identification: Connection closed by remote host\r\nConnection closed by UNKNOWN port 65535"
    assert "jump host" in explain(f"Task failed: Failed to connect to the host via ssh: {closed}")[1]
    assert "no IPv4" in explain("[mpiexec@n1] HYD_sock_get_iface_ip (...): unable to find interface eth0")[0]


def test_hints_contain_address_port_user_and_key_of_the_host() -> None:
    variables = {
        "ansible_host": "10.0.0.7",
        "ansible_port": 2222,
        "ansible_user": "train",
        "ansible_ssh_private_key_file": "~/my key",
    }
    hints = {item["part"]: fill_in_host(item["hint"], "node1", variables) for item in KNOWN_MESSAGES}
    assert "`ssh -i '~/my key' -p 2222 train@10.0.0.7`" in hints["timed out"]
    assert "ssh-keygen -f ~/.ssh/known_hosts -R '[10.0.0.7]:2222'" in hints["REMOTE HOST IDENTIFICATION HAS CHANGED"]
    assert not any("HOST" in hint for hint in hints.values())
    with_alias = fill_in_host("-R HOST; ssh-keyscan HOST", "n", {}, {"hostkeyalias": ["alias"]})
    assert with_alias == "-R alias; ssh-keyscan n | sed 's/^[^ ]*/alias/'"
    for port in (None, "{{ my_port }}"):
        hint = fill_in_host(hints["timed out"] + " ssh HOST", "node1", {"ansible_port": port})
        assert hint.endswith(" ssh node1")


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
