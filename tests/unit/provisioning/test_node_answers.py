"""What nodes say of themselves is input: of one form, or of no use. Nothing of it is a template, a
line of a file that it was not meant for, or an order to a terminal."""

from __future__ import annotations

import base64
import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import OrchError
from orchestrator.load.facts import DamagedRecord, NodeFacts, NotWhatANodeSays, checked, read_record, record_json
from orchestrator.model.host_names import is_address, is_host_key, is_host_name
from orchestrator.model.printable import one_line
from orchestrator.paths import STANDALONE
from orchestrator.provisioning import probe
from orchestrator.provisioning.extra_variables import UNSAFE, render
from orchestrator.provisioning.names import known_hosts, names, ssh_config
from orchestrator.provisioning.plan import address_of
from orchestrator.provisioning.playbook import Playbook, run
from orchestrator.provisioning.report import changes_of, explain, message_of
from orchestrator.provisioning.task_result import RESULTS, TaskResult, task_result
from tests.roles.modules import load_module

LIMITED = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
ORDER = "\x1b]0;owned\x07"


def key(kind: str = "ssh-ed25519") -> str:
    name = kind.encode()
    blob = len(name).to_bytes(4, "big") + name + b"\0\0\0\x20" + bytes(32)
    return f"{kind} {base64.b64encode(blob).decode()}"


def facts(**changes: Any) -> dict[str, Any]:
    good = {
        "schema": 1,
        "hostname": "node0",
        "python": "3.11.2",
        "cpu_model": "a model (R) @ 2 GHz",
        "flags": ["avx2"],
        "cpus": [{"cpu": 0, "core": 0, "socket": 0, "numa": 0}],
        "memory_bytes": 8 << 30,
        "shm_bytes": 1 << 30,
        "libraries": {"libtcmalloc_minimal.so.4": "/usr/lib/libtcmalloc_minimal.so.4"},
        "interfaces": {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.1"]},
        "packages": {"torch": "2.13.0+cpu", "~ip": "1.0"},
        "fingerprint": "ab" * 32,
        "mpi": {"intel": "/opt/orch/bin/mpiexec.hydra"},
        "gpus": 0,
    }
    return good | changes


def answer(**changes: Any) -> dict[str, Any]:
    good = {
        "user": "trainer",
        "uid": 1000,
        "home": "/home/trainer",
        "root": "/home/trainer/orch",
        "machine": "x86_64",
        "python": [3, 11, 2],
        "python_path": "/usr/bin/python3",
        "libc": "2.36",
        "os": {"id": "debian", "like": ""},
        "sudo": True,
        "disk_free": 1 << 40,
        "writable": True,
        "missing": ["ssh"],
        "docker": False,
        "systemd": True,
        "host_keys": [key()],
        "hosts_file": "127.0.0.1 localhost\n",
        "facts": facts(),
        "peers": {"node1": {"address": "10.0.0.2", "source": "10.0.0.1", "resolves": ["10.0.0.2"], "error": ""}},
        "time": 1.0e9,
    }
    return copy.deepcopy(good | changes)


def test_a_node_as_it_should_be() -> None:
    found = probe.probe_of("node0", probe.parse("node0", answer()), 0.0)
    assert (found.family, found.python, found.facts["hostname"]) == ("debian", (3, 11, 2), "node0")


def test_this_machine_is_one() -> None:
    said = subprocess.run([sys.executable, str(STANDALONE / "facts.py")], capture_output=True)
    checked(NodeFacts, json.loads(said.stdout), "this machine")


HOSTILE = ["a\nb", "-oProxyCommand=id", ORDER, "{{ 1 }}", "$(id)", "a b", "", 7, None, ["x"]]


@pytest.mark.parametrize("text", HOSTILE, ids=repr)
@pytest.mark.parametrize("name", ["user", "home", "root", "machine", "python_path", "libc", "host_keys", "missing"])
def test_a_word_that_is_more_than_a_word_is_refused(name: str, text: object) -> None:
    if (name, text) == ("libc", ""):
        return  # musl
    value = [text] if name in ("host_keys", "missing") else text
    with pytest.raises(NotWhatANodeSays, match=f"node0 does not say what a node says: {name}"):
        probe.parse("node0", answer(**{name: value}))


@pytest.mark.parametrize("text", HOSTILE, ids=repr)
@pytest.mark.parametrize(
    "name",
    ["hostname", "python", "flags", "address", "interface", "mpi", "package", "version", "library", "fingerprint"],
)
def test_so_is_one_among_its_facts(name: str, text: Any) -> None:
    if text == "" and name == "fingerprint":
        return
    if not isinstance(text, str) and name in ("interface", "package"):
        return  # JSON has only text there
    changes: dict[str, Any] = {
        "flags": {"flags": [text]},
        "address": {"interfaces": {"eth0": [text]}},
        "mpi": {"mpi": {"intel": text}},
        "version": {"packages": {"torch": text}},
        "library": {"libraries": {"a.so": text}},
    }.get(name, {name: text})
    if name == "interface":
        changes = {"interfaces": {text: []}}
    if name == "package":
        changes = {"packages": {text: "1"}}
    if name == "version" and text in ("-oProxyCommand=id", "$(id)"):
        return  # a word; it is compared and printed, and nothing else
    if name == "package" and text in ("-oProxyCommand=id", "$(id)"):
        return
    with pytest.raises(NotWhatANodeSays):
        probe.parse("node0", answer(facts=facts(**changes)))


@pytest.mark.parametrize("name", ["cpus", "memory_bytes", "shm_bytes", "gpus"])
@pytest.mark.parametrize("value", [-1, 1 << 70, 1.5, "1", True, [{"cpu": -1}], []], ids=repr)
def test_numbers_are_numbers(name: str, value: object) -> None:
    with pytest.raises(NotWhatANodeSays):
        probe.parse("node0", answer(facts=facts(**{name: value})))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_clock_has_a_time(value: float) -> None:
    with pytest.raises(NotWhatANodeSays):
        probe.parse("node0", answer(time=value))


def test_a_mark_of_ansibles_is_no_name() -> None:
    for changes in ({"packages": {UNSAFE: "x"}}, {"interfaces": {"__ansible_type": []}}):
        with pytest.raises(NotWhatANodeSays):
            probe.parse("node0", answer(facts=facts(**changes)))
    with pytest.raises(ValueError, match="is no name of a variable"):
        render({"facts": {UNSAFE: "{{ 1 }}"}})


def test_words_about_an_answer_hold_no_orders() -> None:
    with pytest.raises(NotWhatANodeSays) as refused:
        probe.parse("node0", answer(user=ORDER + "\n"))
    assert refused.value.message.isprintable()


# Names, addresses and keys, which end in /etc/hosts and known_hosts of all nodes.


@pytest.mark.parametrize("line", [key(), key("ecdsa-sha2-nistp256"), key("sk-ssh-ed25519@openssh.com")])
def test_a_host_key(line: str) -> None:
    assert is_host_key(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        "ssh-ed25519 not base64",
        key() + "\n* " + key(),
        key() + " comment",
        "ssh-rsa " + key().split()[1],
        "@cert-authority * " + key(),
        "é " + key(),
    ],
)
def test_what_is_no_host_key(line: str) -> None:
    assert not is_host_key(line)


@LIMITED
@given(st.text() | st.binary().map(lambda found: "ssh-ed25519 " + base64.b64encode(found).decode()))
def test_a_key_name_or_address_is_one_line_and_one_word(text: str) -> None:
    if is_host_key(text):
        assert len(text.split()) == 2
    if is_host_name(text) or is_address(text):
        assert len(text.split()) == 1
        assert text[0] not in "-#@|"
    assert not any(is_host_key(text + end) for end in ("\n", " x", "\r"))
    assert not any(is_host_name(text + end) for end in ("\n", "\t", " x"))
    assert not any(is_address(text + end) for end in ("\n", "%", "%a\nb"))


OWN = ["localhost", "localhost.localdomain", "node1", "NODE1", "10.0.0.9", "pypi.org", "proxy", "own"]


@pytest.mark.parametrize("own", OWN)
def test_what_a_node_calls_itself_is_written_on_no_node(own: str) -> None:
    probes = tuple(
        probe.probe_of(name, probe.parse(name, answer(facts=facts(hostname=hostname))), 0.0)
        for name, hostname in (("node0", own), ("node1", "machine1"))
    )
    seen = {"node0": "10.0.0.1", "node1": "10.0.0.2"}
    assert names(probes, seen) == [
        {"address": "10.0.0.1", "names": ["node0"]},
        {"address": "10.0.0.2", "names": ["node1"]},
    ]
    hosts = [
        line
        for line in ssh_config(probes, seen, dict.fromkeys(seen, 22), "/r").splitlines()
        if line.startswith("Host ")
    ]
    assert hosts == ["Host node0 10.0.0.1", "Host node1 10.0.0.2", "Host *"]
    assert len(known_hosts(probes, seen, dict.fromkeys(seen, 22)).splitlines()) == 2


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST.lab", "10.0.0.1", "fe80::1"])
def test_no_inventory_gives_every_node_another_localhost(name: str) -> None:
    found = probe.probe_of(name, probe.parse(name, answer()), 0.0)
    assert names((found,), {name: "10.0.0.1"}) == []


def test_no_other_node_says_where_a_node_is() -> None:
    """Its peers would talk to whoever is there."""
    lies = answer(peers={"node1": {"address": "10.6.6.6", "source": "", "resolves": [], "error": ""}})
    truth = answer(
        facts=facts(interfaces={"eth0": ["10.0.0.2"]}),
        peers={"node1": {"address": "10.0.0.2", "source": "", "resolves": [], "error": ""}},
    )
    probes = tuple(
        probe.probe_of(name, probe.parse(name, said), 0.0) for name, said in (("node0", lies), ("node1", truth))
    )
    assert address_of("node1", probes) == "10.0.0.2"


@pytest.mark.parametrize(
    "node",
    [
        {"address": "10.0.0.1", "names": ["node0", "a\n1.2.3.4 pypi.org"]},
        {"address": "10.0.0.1\n1.2.3.4", "names": ["node0"]},
        {"address": "10.0.0.1", "names": ["node0 pypi.org"]},
        {"address": "node0", "names": ["node0"]},
    ],
)
def test_the_module_itself_writes_no_other_line(node: dict[str, Any]) -> None:
    hosts = load_module("orch_hosts")
    with pytest.raises(ValueError, match=r".+"):
        hosts.check("lab", [node])
    hosts.check("lab", [{"address": "fe80::1%eth0", "names": ["node0", "n.example.com"]}])
    with pytest.raises(ValueError, match="no name of a cluster"):
        hosts.check("lab\n1.2.3.4 pypi.org", [])


# What is read again later.


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    told = facts() | {
        "root": "/opt/orch",
        "stack": "current",
        "address": "10.0.0.1",
        "connection": {"host": "10.0.0.1", "port": "22"},
        "future": 1,
    }
    (tmp_path / "node0.json").write_text(record_json(told, "node0"))
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
def test_a_record_that_was_altered_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "node0.json").write_text(json.dumps(facts() | changes))
    with pytest.raises(DamagedRecord, match="cannot be read"):
        read_record(tmp_path / "node0.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)


@LIMITED
@given(st.data())
def test_any_change_of_an_answer_is_taken_or_refused(data: st.DataObject) -> None:
    """One value somewhere in a good answer is any other value."""
    told = answer()
    where: Any = told
    while True:
        at = data.draw(st.sampled_from(sorted(where) if isinstance(where, dict) else list(range(len(where)))))
        inner = where[at]
        if not (isinstance(inner, (dict, list)) and inner) or data.draw(st.booleans()):
            where[at] = data.draw(JSON)
            break
        where = inner
    try:
        found = probe.probe_of("node0", probe.parse("node0", told), 0.0)
    except NotWhatANodeSays:
        return
    seen = {"node0": "10.0.0.1"}
    assert len(known_hosts((found,), seen, {"node0": 22}).splitlines()) == len(found.host_keys)
    assert len(ssh_config((found,), seen, {"node0": 22}, "/r").splitlines()) == 17
    json.loads(render({"nodes": {"node0": found.facts}}))


@LIMITED
@given(res=JSON, duration=JSON, task=JSON, state=st.sampled_from(sorted(RESULTS.values())))
def test_any_result_of_a_task_is_told_in_printable_words(
    res: object, duration: object, task: object, state: str
) -> None:
    data = {"host": "node0", "res": res, "duration": duration, "task": task}
    result = task_result(state, data)
    assert isinstance(result, TaskResult)
    told = [*explain(message_of(result.result)), result.task]
    for change in changes_of(result.result, result.task):
        told += [change.what, change.is_, change.should]
    assert all(text.isprintable() for text in told)


@LIMITED
@given(st.text())
def test_what_is_printed_gives_a_terminal_no_orders(text: str) -> None:
    assert one_line(text).isprintable()


# Ansible itself, on this machine.


def test_no_text_is_a_template_to_ansible(tmp_path: Path) -> None:
    """The lock's holder is text like any other: what is in it is written, and not run."""
    mark = tmp_path / "ran"
    (tmp_path / "hosts.yml").write_text(
        f"all: {{hosts: {{node0: {{ansible_connection: local, ansible_python_interpreter: {sys.executable}}}}}}}"
    )
    template = "{{ lookup('pipe', 'touch " + str(mark) + "') }}"
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
    assert not mark.exists()


def test_an_event_on_a_line_of_its_own_gives_a_terminal_no_orders(tmp_path: Path) -> None:
    from orchestrator.provisioning.playbook import handle

    lines: list[str] = []
    with (tmp_path / "log").open("w") as log:
        handle({"stdout": f"ok: [node0] => {ORDER}", "event_data": {}}, log, print, lines.append)
    assert ORDER not in lines[0]
    assert "\x1b" not in (tmp_path / "log").read_text()


def test_an_error_of_ours_is_told_in_printable_words() -> None:
    text = (
        "from orchestrator.errors import OrchError\n"
        "from orchestrator.cli import main\n"
        f"def fail(): raise OrchError({ORDER!r} + 'x', hint={ORDER!r})\n"
        "main.app = fail\nmain.main()"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert (done.returncode, "\x1b" in done.stderr) == (OrchError.exit_code, False)
