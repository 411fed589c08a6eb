"""The records of nodes: a node with a damaged record, and only that node, counts as not provisioned."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import load
from orchestrator.errors import PlanError, RequestError
from orchestrator.files import State
from orchestrator.load.records import NodeRecord, dump, read_record, validate
from orchestrator.operations import nodes
from orchestrator.operations.provision import host_of, port_of, recorded_root
from orchestrator.planning.request import TrainRequest
from orchestrator.provisioning.plan import ProvisionRequest
from orchestrator.provisioning.session import Listener, Session
from orchestrator.targets.interface import CheckRequest
from orchestrator.targets.ssh.target import SshTarget
from tests.support.node_responses import make_inventory, make_node_record, make_reported_facts, write_records


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record_values = make_reported_facts() | {
        "root": "/opt/orch",
        "stack": "current",
        "address": "10.0.0.1",
        "connection": {"host": "10.0.0.1", "port": "22"},
        "future": 1,
    }
    (tmp_path / "node0.json").write_text(json.dumps(dump(validate(NodeRecord, record_values, "node0"))))
    record = read_record(tmp_path / "node0.json")
    assert (record.root, record.hostname, record.connection and record.connection.port) == ("/opt/orch", "node0", "22")


RECORDS = {f"host{index}": make_node_record(index) for index in range(3)}
VALID = json.dumps(RECORDS["host1"])
TORN = VALID[:400].encode()
REQUEST = TrainRequest(recipe="bert-qa", inventory="./lab.yml", backend="gloo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one folder for all tests, so that Ansible reads the inventory only once."""
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture
def lab(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an inventory of three hosts with valid records."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    inventory = folder / "lab.yml"
    if inventory.exists():
        shutil.rmtree(State.of(inventory).folder)
        write_records(inventory, RECORDS)
    else:
        make_inventory(inventory, RECORDS)
    return inventory


def test_keys_of_two_inventories_of_one_name_have_different_comments(tmp_path: Path) -> None:
    states = [State.of(tmp_path / name) for name in ("lab.v1", "lab.v2")]
    for state in states:
        state.write_trust({})
    assert len({(state.trust / "id_ed25519.pub").read_text().split()[-1] for state in states}) == 2


def test_port_of_other_nodes_is_a_number() -> None:
    assert [port_of("n", {"ansible_port": port}) for port in (None, "2222")] == [22, 2222]
    assert port_of("n", {"ansible_port": "{{ x }}", "orch_port": 23}) == 23
    with pytest.raises(RequestError, match="of n is a template"):
        port_of("n", {"ansible_port": "{{ x }}"})


@pytest.fixture
def damaged(lab: Path) -> Path:
    """Return the damaged record of host1."""
    path = State.of(lab).record("host1")
    path.write_bytes(TORN)
    return path


def test_damaged_record_of_an_unknown_host_is_reported(lab: Path) -> None:
    (State.of(lab).folder / "nodes" / "-oProxyCommand=id.json").write_text("{")
    cluster = load.cluster("./lab.yml")
    assert len(cluster.nodes) == 3
    assert "delete" in cluster.damaged["-oProxyCommand=id"]


def test_damaged_or_altered_record_is_reported_and_other_nodes_are_loaded(damaged: Path) -> None:
    """Report each record that cannot be read or would be unsafe, because a node could have written it."""
    for content in (
        b"",
        TORN,
        b"[]",
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"schema": ' + b"9" * 10_000 + b"}",
        *(
            json.dumps(RECORDS["host1"] | changes).encode()
            for changes in (
                {"address": "10.0.0.1\nORCH_END_OF_FILE\nid"},
                {"root": "relative"},
                {"stack": "../../x"},
                {"detours": {"node1": "eth0; id"}},
                {"route": "a b"},
                {"address": None},
                {"connection": {"host": "a\nb"}},
                {"connection": {"host": "h", "arguments": "-F x"}},
                {"connection": {"host": "h", "arguments": "-o StrictHostKeyChecking=no"}},
                {"connection": {"host": "h", "arguments": "-o '"}},
            )
        ),
    ):
        damaged.write_bytes(content)
        cluster = load.cluster("./lab.yml")
        assert [node.name for node in cluster.nodes] == ["host0", "host2"], content
        assert list(cluster.damaged) == ["host1"]
        assert str(damaged) in cluster.damaged["host1"]
        assert "`orch provision`" in cluster.damaged["host1"]
        assert cluster.damaged["host1"].isprintable()
        blocks = [line for line in str(cluster.ssh_config).splitlines() if line.startswith("Host ")]
        assert blocks == ["Host host0", "Host host2"]


def test_runs_on_a_node_with_a_damaged_record_are_refused_and_on_others_warned(damaged: Path) -> None:
    decisions = SshTarget().plan(replace(REQUEST, exclude="host1")).run.decisions
    (warning,) = [decision for decision in decisions if decision.topic == "warning"]
    assert "host1" in warning.value + warning.reason
    with pytest.raises(PlanError, match="host1") as exc_info:
        SshTarget().plan(REQUEST)
    assert str(damaged) in exc_info.value.message
    assert "orch provision ./lab.yml" in exc_info.value.hint
    notes: list[str] = []
    session = Session(ProvisionRequest(inventory="./lab.yml"), Listener(note=notes.append), {}, "provision")
    assert [host_of(session, name).verified for name in session.nodes] == [{}, {}, {}]
    assert "host1" in notes[0]
    assert recorded_root(session) == "/opt/orch", "scripts are synced to all nodes"


def test_orch_nodes_lists_a_node_without_a_usable_record(damaged: Path) -> None:
    assert [row["state"] for row in nodes.rows("./lab.yml")] == ["not verified", "damaged", "not verified"]
    (finding,) = SshTarget().check(CheckRequest(inventory="./lab.yml"))
    assert (finding.subject, finding.severity) == ("host1", "miss")
    assert "orch provision" in finding.hint
    damaged.unlink()
    assert nodes.rows("./lab.yml")[1]["state"] == "unknown"
    (finding,) = SshTarget().check(CheckRequest(inventory="./lab.yml"))
    assert (finding.subject, finding.severity, finding.hint) == ("host1", "unknown", "orch provision ./lab.yml")
