"""Results from nodes are untrusted.

Invalid ones are rejected, and none becomes a template, another line of a file, or an escape sequence on a terminal.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import OrchError
from orchestrator.load.facts import DamagedRecord, InvalidResponse, NodeFacts, read_record, record_json, validate
from orchestrator.model.host_names import is_address, is_host_key, is_host_name
from orchestrator.model.printable import one_line
from orchestrator.paths import STANDALONE
from orchestrator.provisioning import probe
from orchestrator.provisioning.host_files import host_entries, known_hosts, ssh_config
from orchestrator.provisioning.plan import find_address
from orchestrator.provisioning.playbook import UNSAFE, Playbook, handle_event, render_variables, run
from orchestrator.provisioning.report import changes_of, explain, message_of
from orchestrator.provisioning.task_result import RESULTS, TaskResult, task_result
from tests.roles.modules import load_module
from tests.support.node_responses import make_host_key, make_probe_result, make_reported_facts

LIMITED = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
ESCAPE = "\x1b]0;owned\x07"


def test_valid_result_becomes_a_probe() -> None:
    result = probe.make_probe("node0", probe.parse_result("node0", make_probe_result()), 0.0)
    assert (result.family, result.python, result.facts["hostname"]) == ("debian", (3, 11, 2), "node0")


def test_facts_of_this_machine_are_valid() -> None:
    done = subprocess.run([sys.executable, str(STANDALONE / "facts.py")], capture_output=True)
    validate(NodeFacts, json.loads(done.stdout), "this machine")


HOSTILE = ["a\nb", "-oProxyCommand=id", ESCAPE, "{{ 1 }}", "$(id)", "a b", "", 7, None, ["x"]]


@pytest.mark.parametrize("text", HOSTILE, ids=repr)
@pytest.mark.parametrize("name", ["user", "home", "root", "machine", "python_path", "libc", "host_keys", "missing"])
def test_invalid_text_in_a_result_is_rejected(name: str, text: object) -> None:
    if (name, text) == ("libc", ""):
        return  # musl
    value = [text] if name in ("host_keys", "missing") else text
    with pytest.raises(InvalidResponse, match=f"node0 returned an invalid probe: {name}"):
        probe.parse_result("node0", make_probe_result(**{name: value}))


@pytest.mark.parametrize("text", HOSTILE, ids=repr)
@pytest.mark.parametrize(
    "name",
    ["hostname", "python", "flags", "address", "interface", "mpi", "package", "version", "library", "fingerprint"],
)
def test_invalid_text_in_the_facts_is_rejected(name: str, text: Any) -> None:
    if (text == "" and name == "fingerprint") or (name in ("interface", "package") and not isinstance(text, str)):
        return  # valid, and impossible in JSON
    if name in ("version", "package") and text in ("-oProxyCommand=id", "$(id)"):
        return  # valid: it is only compared and printed
    changes: dict[str, Any] = {
        "flags": {"flags": [text]},
        "address": {"interfaces": {"eth0": [text]}},
        "mpi": {"mpi": {"intel": text}},
        "version": {"packages": {"torch": text}},
        "library": {"libraries": {"a.so": text}},
        "interface": {"interfaces": {str(text): []}},
        "package": {"packages": {str(text): "1"}},
    }.get(name, {name: text})
    with pytest.raises(InvalidResponse):
        probe.parse_result("node0", make_probe_result(facts=make_reported_facts(**changes)))


@pytest.mark.parametrize("name", ["cpus", "memory_bytes", "shm_bytes", "gpus"])
@pytest.mark.parametrize("value", [-1, 1 << 70, 1.5, "1", True, [{"cpu": -1}], []], ids=repr)
def test_invalid_numbers_in_the_facts_are_rejected(name: str, value: object) -> None:
    with pytest.raises(InvalidResponse):
        probe.parse_result("node0", make_probe_result(facts=make_reported_facts(**{name: value})))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_invalid_time_is_rejected(value: float) -> None:
    with pytest.raises(InvalidResponse):
        probe.parse_result("node0", make_probe_result(time=value))


def test_ansibles_markers_are_rejected_as_names() -> None:
    for changes in ({"packages": {UNSAFE: "x"}}, {"interfaces": {"__ansible_type": []}}):
        with pytest.raises(InvalidResponse):
            probe.parse_result("node0", make_probe_result(facts=make_reported_facts(**changes)))
    with pytest.raises(ValueError, match="not a valid name of a variable"):
        render_variables({"facts": {UNSAFE: "{{ 1 }}"}})


def test_message_about_an_invalid_result_is_printable() -> None:
    with pytest.raises(InvalidResponse) as error:
        probe.parse_result("node0", make_probe_result(user=ESCAPE + "\n"))
    assert error.value.message.isprintable()


# Names, addresses and keys, which are written to /etc/hosts and known_hosts of all nodes.


@pytest.mark.parametrize("kind", ["ssh-ed25519", "ecdsa-sha2-nistp256", "sk-ssh-ed25519@openssh.com"])
def test_valid_host_key(kind: str) -> None:
    assert is_host_key(make_host_key(kind))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        "ssh-ed25519 not base64",
        make_host_key() + "\n* " + make_host_key(),
        make_host_key() + " comment",
        "ssh-rsa " + make_host_key().split()[1],
        "@cert-authority * " + make_host_key(),
        "é " + make_host_key(),
    ],
)
def test_invalid_host_key(line: str) -> None:
    assert not is_host_key(line)


@LIMITED
@given(st.text() | st.binary().map(lambda blob: "ssh-ed25519 " + base64.b64encode(blob).decode()))
def test_valid_keys_names_and_addresses_have_no_spaces_or_line_breaks(text: str) -> None:
    if is_host_key(text):
        assert len(text.split()) == 2
    if is_host_name(text) or is_address(text):
        assert len(text.split()) == 1
        assert text[0] not in "-#@|"
    assert not any(is_host_key(text + end) for end in ("\n", " x", "\r"))
    assert not any(is_host_name(text + end) for end in ("\n", "\t", " x"))
    assert not any(is_address(text + end) for end in ("\n", "%", "%a\nb"))


HOSTNAMES = ["localhost", "localhost.localdomain", "node1", "NODE1", "10.0.0.9", "pypi.org", "proxy", "own"]


@pytest.mark.parametrize("reported", HOSTNAMES)
def test_hostname_that_a_node_reports_is_written_on_no_node(reported: str) -> None:
    probes = tuple(
        probe.make_probe(
            name, probe.parse_result(name, make_probe_result(facts=make_reported_facts(hostname=hostname))), 0.0
        )
        for name, hostname in (("node0", reported), ("node1", "machine1"))
    )
    addresses = {"node0": "10.0.0.1", "node1": "10.0.0.2"}
    assert host_entries(probes, addresses) == [
        {"address": "10.0.0.1", "names": ["node0"]},
        {"address": "10.0.0.2", "names": ["node1"]},
    ]
    hosts = [
        line
        for line in ssh_config(probes, addresses, dict.fromkeys(addresses, 22), "/r").splitlines()
        if line.startswith("Host ")
    ]
    assert hosts == ["Host node0 10.0.0.1", "Host node1 10.0.0.2", "Host *"]
    assert len(known_hosts(probes, addresses, dict.fromkeys(addresses, 22)).splitlines()) == 2


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST.lab", "10.0.0.1", "fe80::1"])
def test_localhost_and_addresses_of_an_inventory_are_not_written_as_names(name: str) -> None:
    node = probe.make_probe(name, probe.parse_result(name, make_probe_result()), 0.0)
    assert host_entries((node,), {name: "10.0.0.1"}) == []


def test_address_of_a_node_is_not_taken_from_other_nodes() -> None:
    lies = make_probe_result(peers={"node1": {"address": "10.6.6.6", "source": "", "resolves": [], "error": ""}})
    truth = make_probe_result(
        facts=make_reported_facts(interfaces={"eth0": ["10.0.0.2"]}),
        peers={"node1": {"address": "10.0.0.2", "source": "", "resolves": [], "error": ""}},
    )
    probes = tuple(
        probe.make_probe(name, probe.parse_result(name, result), 0.0)
        for name, result in (("node0", lies), ("node1", truth))
    )
    assert find_address("node1", probes) == "10.0.0.2"


@pytest.mark.parametrize(
    "node",
    [
        {"address": "10.0.0.1", "names": ["node0", "a\n1.2.3.4 pypi.org"]},
        {"address": "10.0.0.1\n1.2.3.4", "names": ["node0"]},
        {"address": "10.0.0.1", "names": ["node0 pypi.org"]},
        {"address": "node0", "names": ["node0"]},
    ],
)
def test_module_rejects_entries_that_would_be_other_lines(node: dict[str, Any]) -> None:
    hosts = load_module("orch_hosts")
    with pytest.raises(ValueError, match=r".+"):
        hosts.check("lab", [node])
    hosts.check("lab", [{"address": "fe80::1%eth0", "names": ["node0", "n.example.com"]}])
    with pytest.raises(ValueError, match="not a valid cluster name"):
        hosts.check("lab\n1.2.3.4 pypi.org", [])


# Records.


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record_values = make_reported_facts() | {
        "root": "/opt/orch",
        "stack": "current",
        "address": "10.0.0.1",
        "connection": {"host": "10.0.0.1", "port": "22"},
        "future": 1,
    }
    (tmp_path / "node0.json").write_text(record_json(record_values, "node0"))
    record = read_record(tmp_path / "node0.json")
    assert record is not None
    assert (record.root, record.hostname, record.connection and record.connection.port) == ("/opt/orch", "node0", "22")


@pytest.mark.parametrize(
    "changes",
    [
        {"address": "10.0.0.1\nORCH_END_OF_FILE\nid"},
        {"root": "relative"},
        {"stack": "../../x"},
        {"connection": {"host": "a\nb"}},
        {"detours": {"node1": "eth0; id"}},
        {"route": "a b"},
    ],
)
def test_altered_record_is_rejected(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "node0.json").write_text(json.dumps(make_reported_facts() | changes))
    with pytest.raises(DamagedRecord, match="cannot be read"):
        read_record(tmp_path / "node0.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)


@LIMITED
@given(st.data())
def test_any_change_of_a_result_is_accepted_or_rejected(data: st.DataObject) -> None:
    """Replace one value of a valid result by any other value."""
    result = make_probe_result()
    container: Any = result
    while True:
        keys = sorted(container) if isinstance(container, dict) else list(range(len(container)))
        key = data.draw(st.sampled_from(keys))
        inner = container[key]
        if not (isinstance(inner, (dict, list)) and inner) or data.draw(st.booleans()):
            container[key] = data.draw(JSON)
            break
        container = inner
    try:
        node = probe.make_probe("node0", probe.parse_result("node0", result), 0.0)
    except InvalidResponse:
        return
    addresses = {"node0": "10.0.0.1"}
    assert len(known_hosts((node,), addresses, {"node0": 22}).splitlines()) == len(node.host_keys)
    assert len(ssh_config((node,), addresses, {"node0": 22}, "/r").splitlines()) == 17
    json.loads(render_variables({"nodes": {"node0": node.facts}}))


@LIMITED
@given(res=JSON, duration=JSON, task=JSON, state=st.sampled_from(sorted(RESULTS.values())))
def test_any_result_of_a_task_is_reported_as_printable_text(
    res: object, duration: object, task: object, state: str
) -> None:
    data = {"host": "node0", "res": res, "duration": duration, "task": task}
    result = task_result(state, data)
    assert isinstance(result, TaskResult)
    texts = [*explain(message_of(result.result)), result.task]
    for change in changes_of(result.result, result.task):
        texts += [change.what, change.is_, change.should]
    assert all(text.isprintable() for text in texts)


@LIMITED
@given(st.text())
def test_one_line_is_printable(text: str) -> None:
    assert one_line(text).isprintable()


# Ansible on this machine.


def test_ansible_does_not_evaluate_texts_as_templates(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "hosts.yml").write_text(
        f"all: {{hosts: {{node0: {{ansible_connection: local, ansible_python_interpreter: {sys.executable}}}}}}}"
    )
    template = "{{ lookup('pipe', 'touch " + str(marker) + "') }}"
    root = tmp_path / template
    results: list[TaskResult] = []
    playbook = Playbook(
        name="unlock",
        inventory=tmp_path / "hosts.yml",
        variables={"orch_root": str(root), "orch_owner": {"token": template}},
        state=tmp_path / "state",
        log=tmp_path / "log",
    )
    assert run(playbook, results.append, lambda line: None) == "successful"
    assert [result.node for result in results if result.state == "ok"]
    assert not marker.exists()


def test_events_are_logged_without_escape_sequences(tmp_path: Path) -> None:
    lines: list[str] = []
    with (tmp_path / "log").open("w") as log:
        handle_event({"stdout": f"ok: [node0] => {ESCAPE}", "event_data": {}}, log, print, lines.append)
    assert ESCAPE not in lines[0]
    assert "\x1b" not in (tmp_path / "log").read_text()


def test_errors_of_the_command_line_are_printable() -> None:
    text = (
        "from orchestrator.errors import OrchError\n"
        "from orchestrator.cli import main\n"
        f"def fail(): raise OrchError({ESCAPE!r} + 'x', hint={ESCAPE!r})\n"
        "main.app = fail\nmain.main()"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert (done.returncode, "\x1b" in done.stderr) == (OrchError.exit_code, False)
